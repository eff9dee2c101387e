"""Sparse attention: what do fewer pairs of tokens save, and what do they cost?"""

from __future__ import annotations

import math
from typing import Any

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.efficiency import efficiency_measures as measures
from qkv.lab.experiments.efficiency.efficiency_measures import faster, hardly_worse
from qkv.nn.attention import Causal, Mask, Strided, Window

MARGIN = 0.05


def measure(cell: Cell) -> Measured:
    """Pairs and time by length; then the loss of a GPT with this pattern."""
    size = cell.size
    if cell.arm == measures.ITSELF:
        return {"loss": measures.fit_python(cell, window=1).validation_loss}

    pairs, seconds = {}, {}
    for length in size.lengths:
        masks: dict[str, Mask] = {
            "dense": Causal(),
            "window": Causal() & Window(size.window),
            "strided": Causal() & Strided(math.isqrt(length)),
        }
        mask = masks[cell.arm]
        pairs[length] = float(mask.materialise(length, length).sum())
        seconds[length] = measures.attention_seconds(mask, length, cell.device, size.turns)

    choices: dict[str, dict[str, Any]] = {
        "dense": {},
        "window": {"window": size.window},
        "strided": {"sparse": "strided", "stride": math.isqrt(size.context)},
    }
    loss = measures.fit_python(cell, **choices[cell.arm]).validation_loss
    return {
        "pairs": pairs, "exponent": measures.growth_exponent(pairs),
        "seconds": seconds, "longest": seconds[size.lengths[-1]], "loss": loss,
    }  # fmt: skip


def grows_slower(arm: str) -> Check:
    """The exact check of an arm's pairs."""
    return Check(
        f"The pairs of the {arm} pattern grow with a smaller exponent than those of dense",
        lambda value: value("dense", "exponent") - value(arm, "exponent"),
        relevant=0.3, exact=True,
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="sparse",
    claim="Attention on chosen pairs is cheaper, and the model gets little worse.",
    slides=("002 L91", "002 L93"),
    setup=(
        "Dense causal attention, a sliding window, and the Sparse Transformer's strided pattern.",
        "Pairs are counted from the masks; time is one layer, forward and backward.",
        "The exponent is the slope between the two longest lengths: quadratic is 2, linear is 1.",
        "A GPT with each pattern reads Python code; the loss is that of held-out code.",
        f"Little worse: at most {MARGIN} nats.",
    ),
    arms=("dense", "window", "strided", measures.ITSELF),
    measure=measure,
    checks=(
        grows_slower("window"), faster("window"), hardly_worse("window", "dense", MARGIN),
        grows_slower("strided"), faster("strided"), hardly_worse("strided", "dense", MARGIN),
        measures.attention_is_used("dense"),
    ),
    panels=(
        Panel("pairs", "length", "pairs", "Pairs, counted", log="xy"),
        Panel("seconds", "length", "seconds", "Time of a layer", log="xy"),
        Panel("loss", "", "held-out loss (nats)", "Quality", "dots"),
    ),
    timed=True,
    small=Size(
        seeds=4, minutes=2.5, lengths=(512, 1024, 2048, 4096), window=64, turns=5, steps=200,
        width=64, depth=2, context=256, batch_tokens=512, validation_batches=20, rate=3e-3,
    ),
    large=Size(
        seeds=4, minutes=5, lengths=(1024, 4096, 8192, 16384), window=256, turns=15, steps=500,
        width=256, depth=4, context=1024, batch_tokens=4096, validation_batches=20, rate=1e-3,
    ),
    remark="A model that has learned little cannot lose much: the last check tells whether other "
    "tokens matter at all, not whether far ones do. The time is judged at the longest length "
    "only; the second panel shows at which lengths a pattern does not pay. At the small size the "
    "strided one is 1.3 times as fast, less than the 1.4 that count here.",
    next_steps=("qkv train gpt --data my.txt --context 2048 --window 256 --out runs/window",),
)  # fmt: skip
