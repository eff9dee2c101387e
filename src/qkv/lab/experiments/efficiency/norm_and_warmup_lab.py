"""Norm before or after each sublayer: does a deep Transformer train without warm-up?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.efficiency.efficiency_measures import turkish_task
from qkv.lab.fit import fit, validation_loss
from qkv.models import build

ARMS = {
    "after, warm-up": ("after", 0.25),
    "after, none": ("after", 0.0),
    "before, warm-up": ("before", 0.25),
    "before, none": ("before", 0.0),
}
WORST = 10.0
"""Losses are cut here: a run that diverged is bad, however far it went."""


def measure(cell: Cell) -> Measured:
    """The held-out loss by depth, after the same steps with the same highest rate."""
    size = cell.size
    placement, warmup_share = ARMS[cell.arm]
    warmup = max(1, round(warmup_share * size.steps))
    task = turkish_task(size.batch_tokens, cell.seed)

    losses = {}
    for depth in size.depths:
        torch.manual_seed(cell.seed)
        choices: dict[str, Any] = {"width": size.width, "depth": depth, "heads": 4}
        choices |= {"norm_placement": placement, "dropout": 0.0}
        model = build(replace(task.config, **choices)).to(cell.device)
        fit(model, task.training.batch, size.steps, rate=size.rate, warmup=warmup)
        losses[depth] = min(WORST, validation_loss(model, task, size.validation_batches))

    return {"loss": losses, "deepest": losses[size.depths[-1]]}


EXPERIMENT = Experiment(
    name="norm-and-warmup",
    claim="A deep Transformer needs warm-up if the norm comes after each sublayer, not if before.",
    slides=("004 L40", "001 L290", "beyond the lectures: Xiong et al. 2020"),
    setup=(
        "Transformers of growing depth translate the grammar's English into Turkish.",
        "Layer norm stands before each sublayer, or after its residual connection.",
        "The rate starts at its highest value, or rises to it over a quarter of the steps.",
        "All have the same highest rate, data and seeds; then the rate falls along a cosine.",
        f"The loss is that of held-out pairs; a loss above {WORST:g} nats counts as {WORST:g}.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "Norm after, deepest model: warm-up lowers the loss",
            lambda value: value("after, none", "deepest") - value("after, warm-up", "deepest"),
            relevant=0.1,
        ),
        Check(
            "Norm before, deepest model: warm-up changes the loss by less than 0.15 nats",
            lambda value: value("before, none", "deepest") - value("before, warm-up", "deepest"),
            relevant=0.15, expects="same",
        ),
        Check(
            "Without warm-up, the deepest model is better with the norm before",
            lambda value: value("after, none", "deepest") - value("before, none", "deepest"),
            relevant=0.1,
        ),
    ),
    panels=(Panel("loss", "blocks", "held-out loss (nats)", "Loss by depth"),),
    small=Size(
        seeds=4, minutes=2, depths=(1, 6), steps=160, width=32, batch_tokens=512,
        validation_batches=8, rate=3e-3,
    ),
    large=Size(
        seeds=3, minutes=6, depths=(2, 12), steps=400, width=128, batch_tokens=4096,
        validation_batches=20, rate=2e-3,
    ),
    remark="At the small size warm-up may help a little with the norm before, too: by 0.10 nats "
    "(after: 0.81). It may depend on the initial weights, here Glorot's: GPTs with small ones "
    "(std 0.02) and the norm after gained nothing by it in one run each: 2.954 nats with and 2.953 "
    "without warm-up (6 blocks), 3.22 and 3.02 (12 blocks).",
    next_steps=(
        "qkv lab norm-and-warmup --set rate=1e-3: does a lower rate replace the warm-up?",
    ),
)  # fmt: skip
