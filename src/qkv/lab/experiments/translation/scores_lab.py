"""Scores: which ways to score a query against a key let a translator learn?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.translation import translators as tr

SCORES = {
    "dot": "dot",
    "scaled dot": "scaled_dot",
    "general": "general",
    "additive": "additive",
}
NONE = "no attention"


def measure(cell: Cell) -> Measured:
    """Train an RNN with one score, and follow its BLEU; then compare its attention to the truth."""
    size = cell.size
    if cell.arm == tr.FIXED:
        return {"aligned words": tr.fixed_accuracy(False, size.sentences)}

    config = tr.rnn(size.width, SCORES.get(cell.arm, "none"))
    (model,), curve = tr.follow(cell, config, size.steps, rate=size.rate)
    found: dict[str, Any] = {"BLEU": curve, "final BLEU": curve[size.steps]}
    if cell.arm != NONE:
        found["aligned words"] = tr.alignment_accuracy(model, size.sentences)["mean"]

    return found


def worst(value: Callable[..., float], name: str) -> float:
    """The lowest number among the four scores."""
    return min(value(score, name) for score in SCORES)


EXPERIMENT = Experiment(
    name="scores",
    claim="There are many options for the score of a query and a key, and each of them works.",
    slides=("001 L73", "001 L68", "000 L28", "000 L35"),
    setup=(
        "English to Turkish; in the test sentences no noun occurs with its verb as in training.",
        "One GRU encoder-decoder; only the score of its attention changes, all else is equal.",
        "dot <q, k>; scaled dot <q, k>/√d; general <Aq, Bk>; additive v·tanh(Aq + Bk); none.",
        "Aligned: words whose strongest weight is on the English word that the grammar names.",
        "Best fixed: word t always to its usual place in sentences of that length.",
    ),
    arms=(NONE, *SCORES, tr.FIXED),
    measure=measure,
    checks=(
        Check(
            "The worst of the four scores has a better BLEU than no attention",
            lambda value: worst(value, "final BLEU") - value(NONE, "final BLEU"),
            relevant=5.0,
        ),
        Check(
            "The worst of the four scores aligns more words than the best fixed connections",
            lambda value: worst(value, "aligned words") - value(tr.FIXED, "aligned words"),
            relevant=0.1,
        ),
    ),
    panels=(
        Panel("BLEU", "step", "BLEU", "How fast each score learns"),
        Panel("aligned words", "", "fraction of words", "Attention on the right word"),
    ),
    small=Size(seeds=4, minutes=2, width=64, steps=450, rate=1e-2, points=8, sentences=200),
    large=Size(seeds=4, minutes=3, width=128, steps=400, rate=1e-2, points=10, sentences=500),
    remark="The checks compare what is learned in the end; the curves tell which score begins to "
    "learn first.",
    next_steps=(
        "qkv lab scores --set steps=800: do the scores differ in the end, or only in speed?",
        "qkv train rnn --data turkish --attention general",
        "Why does scaling matter more for long vectors? qkv lab scaling",
    ),
)
