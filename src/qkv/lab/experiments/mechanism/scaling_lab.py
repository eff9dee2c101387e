"""Why are scores divided by sqrt(d)? Without it, wide heads saturate the softmax."""

from __future__ import annotations

from contextlib import nullcontext
from math import log10
from typing import Any

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.mechanism.small_models import learn_reversal, softmax_derivative
from qkv.lab.surgery import unscaled
from qkv.nn.attention.score import dot, scaled_dot

ARMS: dict[str, Any] = {"scaled": (scaled_dot, nullcontext), "unscaled": (dot, unscaled)}
DIMENSIONS = (4, 16, 64, 256, 1024)


def measure(cell: Cell) -> Measured:
    """The softmax of random vectors; and training over head widths and over learning rates."""
    score, surgery = ARMS[cell.arm]
    widths = cell.size.head_widths
    rates = [round(cell.size.rate * factor, 6) for factor in (1 / 3, 1, 3)]
    cases = [(width, rates[1]) for width in widths] + [(widths[-1], rate) for rate in rates]
    trained = {}
    for width, rate in dict.fromkeys(cases):
        trained[width, rate] = learn_reversal(cell, width, rate, surgery)

    return {
        "derivative": {d: softmax_derivative(score, d, cell.seed) for d in DIMENSIONS},
        "accuracy": {width: trained[width, rates[1]][0] for width in widths},
        "accuracy by rate": {rate: trained[widths[-1], rate][0] for rate in rates},
        "first gradient": {width: trained[width, rates[1]][1] for width in widths},
        "widest": trained[widths[-1], rates[1]][0],
    }


EXPERIMENT = Experiment(
    name="scaling",
    claim="Without the division by sqrt(d), wide heads saturate the softmax and do not learn.",
    slides=("002 L58", "003 L149", "003 L163", "004 L56"),
    setup=(
        "Random queries and keys: the derivative p (1 - p) of the softmax by the dimension d.",
        "A Transformer with one head learns to reverse sequences of random tokens.",
        "Scaled and unscaled models have the same data and the same initial weights.",
        "Head widths are compared at the middle learning rate, rates at the widest head.",
        "Accuracy is that of tokens in new sequences; the token of the end is easy.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "Unscaled, the softmax of 1,024 dimensions has a smaller derivative (log10)",
            lambda of: log10(of("scaled", "derivative", 1024) / of("unscaled", "derivative", 1024)),
            relevant=0.5,
        ),
        Check(
            "The widest heads learn better if scaled",
            lambda value: value("scaled", "widest") - value("unscaled", "widest"),
            relevant=0.2,
        ),
    ),
    panels=(
        Panel("derivative", "d", "mean p (1 - p)", "Softmax of random vectors", log="xy"),
        Panel("accuracy", "head width", "accuracy", "Training, by head width", log="x"),
        Panel("accuracy by rate", "learning rate", "accuracy", "Widest heads, by rate", log="x"),
        Panel("first gradient", "head width", "norm", "First gradient of W_q and W_k", log="xy"),
    ),
    small=Size(
        seeds=5, minutes=1.7, steps=400, width=32, length=8, rate=3e-3, head_widths=(16, 64, 256)
    ),
    large=Size(
        seeds=3, minutes=5, steps=500, width=64, length=12, rate=1e-3, head_widths=(16, 128, 1024)
    ),
    remark="A small derivative of the softmax does not mean a small gradient of W_q and W_k. At "
    "the small size, with heads of 256, theirs is larger without scaling: 0.07, not 0.005, at the "
    "start. At the small size both learn at a rate of 0.001, so the effect is easily missed.",
    next_steps=(
        "qkv lab scaling --set length=12: in a harder task narrow heads need scaling, too.",
        "qkv lab scaling --set steps=1000: do unscaled heads learn if they get more steps?",
        "What happens if scores are divided by d instead of sqrt(d)?",
    ),
)
