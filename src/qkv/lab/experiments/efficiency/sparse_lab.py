"""Sparse attention: what do fewer pairs of tokens save, and what do they cost?"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit_text
from qkv.models import GPTConfig
from qkv.nn.attention import Causal, Mask, Strided, Window, attend


def masks(length: int, size: Size) -> dict[str, Mask]:
    """The pairs that each arm computes."""
    return {
        "dense": Causal(),
        "window": Causal() & Window(size.window),
        "strided": Causal() & Strided(math.isqrt(length)),
    }


def measure(cell: Cell) -> Measured:
    """Pairs and time by length; then the loss of a GPT with this pattern."""
    size = cell.size
    pairs = {}
    seconds = {}
    for length in size.lengths:
        mask = masks(length, size)[cell.arm]
        pairs[length] = float(mask.materialise(length, length).sum())
        seconds[length] = median(timed(cell, mask, length) for _ in range(size.turns))

    patterns: dict[str, dict[str, Any]] = {
        "dense": {},
        "window": {"window": size.window},
        "strided": {"sparse": "strided", "stride": math.isqrt(size.context)},
    }
    config = GPTConfig(
        context=size.context, width=size.width, depth=size.depth, heads=4, **patterns[cell.arm]
    )
    fitted = fit_text(
        config,
        "python",
        size.steps,
        seed=cell.seed,
        device=cell.device,
        batch_tokens=4 * size.context,
        validation_batches=20,
        rate=3e-3,
    )
    return {
        "pairs": pairs,
        "seconds": seconds,
        "exponent of pairs": exponent(pairs),
        "exponent of time": exponent(seconds),
        "loss": fitted.validation_loss,
    }


def timed(cell: Cell, mask: Mask, length: int) -> float:
    """Seconds of attention, forward and backward, in the library's own choice of a kernel."""
    query, key, value = torch.randn(3, 1, 4, length, 32, device=cell.device).requires_grad_()
    wait: Callable[[], object] = torch.cuda.synchronize if cell.device.type == "cuda" else float
    wait()
    start = perf_counter()
    attend(query, key, value, mask=mask)[0].sum().backward()
    wait()
    return perf_counter() - start


def exponent(by_length: dict[int, float]) -> float:
    """The slope between the two longest on logarithmic scales: 2 is quadratic, 1 is linear."""
    (short, low), (long, high) = list(by_length.items())[-2:]
    return math.log(high / low) / math.log(long / short)


EXPERIMENT = Experiment(
    name="sparse",
    claim="Attention on chosen pairs is cheaper than attention on all pairs, and the model gets "
    "little worse.",
    slides=("002 L91", "002 L93"),
    setup=(
        "Dense causal attention, a sliding window, and the Sparse Transformer's strided pattern.",
        "Pairs are counted from the masks; time is one layer, forward and backward, one thread.",
        "The exponent is the slope between the two longest lengths: quadratic is 2, linear is 1.",
        "A GPT with each pattern reads Python code; the loss is that of held-out code.",
    ),
    arms=("dense", "window", "strided"),
    measure=measure,
    checks=(
        Check(
            "The pairs of a window grow by a smaller exponent",
            lambda value: (
                value("dense", "exponent of pairs") - value("window", "exponent of pairs")
            ),
            0.3,
            exact=True,
        ),
        Check(
            "The pairs of the strided pattern grow by a smaller exponent",
            lambda value: (
                value("dense", "exponent of pairs") - value("strided", "exponent of pairs")
            ),
            0.3,
            exact=True,
        ),
        Check(
            "A window takes less time at the longest length",
            lambda value: value("dense", "exponent of time") - value("window", "exponent of time"),
            0.2,
        ),
        Check(
            "With a window the loss changes by less than 0.1 nats",
            lambda value: value("window", "loss") - value("dense", "loss"),
            0.1,
            "same",
        ),
    ),
    panels=(
        Panel("pairs", "length", "pairs", "Pairs, counted", log="xy"),
        Panel("seconds", "length", "seconds", "Time of a layer", log="xy"),
        Panel("loss", "", "validation loss (nats)", "Quality", "dots"),
    ),
    timed=True,
    small=Size(
        seeds=4,
        minutes=2,
        lengths=(256, 512, 1024, 2048),
        window=64,
        turns=5,
        steps=100,
        width=64,
        depth=2,
        context=256,
    ),
    large=Size(
        seeds=4,
        minutes=5,
        lengths=(1024, 4096, 8192, 16384),
        window=256,
        turns=15,
        steps=500,
        width=256,
        depth=4,
        context=1024,
    ),
    next_steps=("qkv train gpt --data my.txt --context 2048 --window 256 --out runs/window",),
)
