"""Scale: how does the loss of a language model fall with its number of parameters?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.learning_curve import tenths
from qkv.lab.experiments.power_law import draw_power_law, fitted_exponent
from qkv.lab.fit import fit_text, validation_accuracy
from qkv.models import GPTConfig
from qkv.training.setup.cost import cost

FACTORS = {"width x 1": 1, "width x 2": 2, "width x 4": 4, "width x 8": 8}


def measure(cell: Cell) -> Measured:
    """Train one size on the same tokens as the others; keep the loss by training FLOPs."""
    size = cell.size
    width = size.width * FACTORS[cell.arm]
    config = GPTConfig(width=width, depth=size.depth, heads=size.heads, context=size.context)
    fitted = fit_text(
        config, "python", size.steps, seed=cell.seed, device=cell.device, validation_batches=64,
        batch_tokens=size.batch_tokens, rate=size.rate / math.sqrt(width),
    )  # fmt: skip

    spent = cost(fitted.task.config, size.batch_tokens, "float32")
    per_step = spent.flops_per_token * size.batch_tokens
    curve = {per_step * step: loss for step, loss in tenths(fitted.losses).items()}
    return {
        "loss": fitted.validation_loss, "parameters": spent.parameters, "by FLOPs": curve,
        "right": validation_accuracy(fitted.model, fitted.task, 16),
    }  # fmt: skip


def exponent(value: Callable[..., float]) -> float:
    """By which power of the parameters the loss of one seed falls."""
    sizes = [value(arm, "parameters") for arm in FACTORS]
    return -fitted_exponent(sizes, [value(arm, "loss") for arm in FACTORS])


def smallest_gain(value: Callable[..., float], measure: str, sign: int) -> float:
    """The smallest rise of a measure, or fall if the sign is -1, between neighbouring sizes."""
    return float((sign * np.diff([value(arm, measure) for arm in FACTORS])).min())


FALL = partial(smallest_gain, measure="loss", sign=-1)
RISE = partial(smallest_gain, measure="right", sign=1)


EXPERIMENT = Experiment(
    name="scale",
    claim="Bigger language models are better: at equal tokens every doubling lowers the loss.",
    slides=("000 L145", "000 L147", "000 L191"),
    setup=(
        "GPTs of four widths, each twice the one before, learn the characters of Python files.",
        "All of them read the same tokens in the same order, for the same number of steps.",
        "The learning rate falls with the square root of the width: it suits every size.",
        "A power law is fitted to the held-out losses of each seed; its exponent is the effect.",
    ),
    arms=tuple(FACTORS),
    measure=measure,
    checks=(
        Check("The loss falls with size: exponent of a fitted power", exponent, relevant=0.02),
        Check("Every doubling of the width lowers the loss", FALL, relevant=0.02),
        Check("Every doubling makes more predictions right", RISE, relevant=0.005),
    ),
    panels=(
        Panel("loss", "parameters", "held-out loss", "Equal tokens", log="xy", draw=draw_power_law),
        Panel("right", "", "next characters that are right", "Accuracy", kind="dots"),
        Panel("by FLOPs", "training FLOPs", "training loss", "Equal compute", log="xy"),
    ),
    small=Size(
        seeds=4, minutes=1.5, steps=300, width=16, depth=2, heads=4, context=64,
        batch_tokens=1024, rate=0.04,
    ),
    large=Size(
        seeds=3, minutes=4, steps=500, width=64, depth=4, heads=8, context=256,
        batch_tokens=16384, rate=0.04,
    ),
    remark="Whether it is a power law is not tested: four sizes are too few. At equal compute "
    "bigger need not be better: the right panel shows which size is ahead for how much compute.",
    next_steps=("qkv lab scale --set steps=1000", "qkv lab scale --set depth=4"),
)  # fmt: skip
