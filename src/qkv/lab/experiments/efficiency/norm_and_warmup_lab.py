"""Norm before or after each sublayer: does a deep Transformer train without warm-up?"""

from __future__ import annotations

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit_text
from qkv.models import GPTConfig

ARMS = {
    "before, warm-up": ("before", True),
    "before, none": ("before", False),
    "after, warm-up": ("after", True),
    "after, none": ("after", False),
}
WORST = 6.0
"""Losses are cut here: a run that diverged is bad, however far it went."""


def measure(cell: Cell) -> Measured:
    """The validation loss by depth, after the same steps at the same highest rate."""
    size = cell.size
    placement, warms_up = ARMS[cell.arm]
    losses = {}
    for depth in size.depths:
        config = GPTConfig(
            context=size.context,
            width=size.width,
            depth=depth,
            heads=4,
            norm_placement=placement,
        )
        fitted = fit_text(
            config,
            "python",
            size.steps,
            seed=cell.seed,
            device=cell.device,
            batch_tokens=size.batch_tokens,
            validation_batches=size.validation_batches,
            rate=size.rate,
            warmup=size.steps // 4 if warms_up else 1,
        )
        losses[depth] = min(WORST, fitted.validation_loss)

    deepest = size.depths[-1]
    return {"loss": losses, "deepest": losses[deepest]}


EXPERIMENT = Experiment(
    name="norm-and-warmup",
    claim="With layer norm after each sublayer, as in the first Transformer, a deep model needs "
    "warm-up; with layer norm before it, it does not.",
    slides=("004 L40", "001 L290", "beyond the lectures: Xiong et al. 2020"),
    setup=(
        "GPTs of growing depth read Python code, character by character.",
        "Layer norm stands before each sublayer, or after its residual connection.",
        "The learning rate starts at its highest value, or rises to it over a quarter of the steps.",
        "All have the same highest rate, data and seeds; then the rate falls along a cosine.",
        "The loss is that of held-out code; a loss above 6 nats counts as 6.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "Norm after, deepest model: warm-up lowers the loss",
            lambda value: value("after, none", "deepest") - value("after, warm-up", "deepest"),
            0.1,
        ),
        Check(
            "Norm before, deepest model: warm-up hardly matters",
            lambda value: value("before, none", "deepest") - value("before, warm-up", "deepest"),
            0.15,
            "same",
        ),
        Check(
            "Without warm-up, the deepest model is better with the norm before",
            lambda value: value("after, none", "deepest") - value("before, none", "deepest"),
            0.1,
        ),
    ),
    panels=(Panel("loss", "blocks", "validation loss (nats)", "Loss by depth"),),
    small=Size(
        seeds=4,
        minutes=2,
        depths=(2, 6, 12),
        steps=150,
        width=32,
        context=32,
        batch_tokens=512,
        validation_batches=20,
        rate=3e-3,
    ),
    large=Size(
        seeds=4,
        minutes=5,
        depths=(2, 6, 12, 24),
        steps=500,
        width=128,
        context=128,
        batch_tokens=4096,
        validation_batches=20,
        rate=2e-3,
    ),
    next_steps=(
        "qkv lab norm-and-warmup --set rate=1e-3: does a lower rate replace the warm-up?",
        "qkv train transformer --norm-placement after --warmup 400 --data turkish --out runs/after",
    ),
)
