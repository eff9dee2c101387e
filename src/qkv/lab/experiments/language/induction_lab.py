"""Induction: when does a model learn to continue what it has seen before, and with which layers?"""

from __future__ import annotations

from collections.abc import Callable

import torch

from qkv import text
from qkv.data.embedded.synthetic_batches import repeated_batch
from qkv.insight.heads.head_patterns import head_patterns
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.learning_curve import half_way, steepest
from qkv.lab.fit import accuracy, fit
from qkv.models import GPT, GPTConfig

ONE, TWO = "1 wide layer", "2 layers"


def measure(cell: Cell) -> Measured:
    """Train on random sequences that repeat; follow the accuracy and the best head's pattern."""
    size = cell.size
    words = [f"w{number}" for number in range(size.vocabulary)]
    tokenizer = text.train("words", words, 2 * size.vocabulary)
    shape = {"depth": 2, "width": size.width}
    if cell.arm == ONE:
        shape = {"depth": 1, "width": size.width * 3 // 2}

    sizes = (size.rows, size.length, tokenizer.vocabulary)
    config = GPTConfig(
        vocabulary=tokenizer.vocabulary, context=size.length, heads=2, position="rotary", **shape
    )
    model = GPT(config).to(cell.device)
    held_out = repeated_batch(cell.seed, 0, *sizes, split="valid").to(cell.device)
    right: dict[int, float] = {}
    score: dict[int, float] = {}

    @torch.no_grad()
    def look(step: int) -> None:
        if step % (size.steps // 20) == 0:
            right[step] = accuracy(model(held_out.ids), held_out.targets)
            (patterns,) = head_patterns(model, tokenizer, ["w1 w2"])
            score[step] = float(patterns.scores["induction"].max())

    look(0)
    batch = lambda step: repeated_batch(cell.seed, step, *sizes)  # noqa: E731
    fit(model, batch, size.steps, rate=size.rate, seed=cell.seed, every=look, beta2=0.98)
    return {
        "accuracy": right, "best accuracy": max(right.values()), "sudden": steepest(right),
        "best head": score, "highest score": max(score.values()),
        "half accuracy": half_way(right), "half head": half_way(score),
    }  # fmt: skip


def advantage(name: str) -> Callable[[Callable[..., float]], float]:
    """Two layers, less one."""
    return lambda value: value(TWO, name) - value(ONE, name)


EXPERIMENT = Experiment(
    name="induction",
    claim="Continuing a repeated sequence needs two layers, and is learned suddenly.",
    slides=("beyond the lectures",),
    setup=(
        "Random tokens that repeat after a quarter to a half of the sequence; loss only there.",
        "A GPT with two layers, and one with a single layer that has more parameters.",
        "Induction score: the best head's attention to what followed an earlier copy.",
        "Sudden: more than half of the rise within a fifth of the training.",
    ),
    arms=(ONE, TWO),
    measure=measure,
    checks=(
        Check("Two layers continue more often", advantage("best accuracy"), relevant=0.2),
        Check("Only two layers have an induction head", advantage("highest score"), relevant=0.2),
        Check("Sudden (share above half)", lambda value: value(TWO, "sudden") - 0.5, 0.1),
        Check(
            "The head and the accuracy come at the same time (share of the training)",
            lambda value: value(TWO, "half head") - value(TWO, "half accuracy"), 0.1, "same",
        ),
    ),
    panels=(
        Panel("accuracy", "step", "accuracy in the repetition"),
        Panel("best head", "step", "induction score", "The best head"),
    ),
    small=Size(
        seeds=5, minutes=1.7, steps=1000, width=64, length=48, vocabulary=64, rows=16, rate=3e-3
    ),
    large=Size(
        seeds=4, minutes=4, steps=3000, width=128, length=128, vocabulary=256, rows=64, rate=2e-3
    ),
    remark="At the small size one layer stays near 20%; to note what came before may take a layer.",
    next_steps=("qkv lab induction --set vocabulary=128", "qkv heads smollm2: a trained model"),
)  # fmt: skip
