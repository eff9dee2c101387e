"""Masked words: what is it worth to see both sides of a gap?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qkv.data.embedded.everyday_english import english_texts
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.language.grammar_models import (
    accuracy_by_words_after,
    clues_filled,
    pretrain,
)
from qkv.models.model import Model

BOTH, LEFT, GPT = "BERT", "BERT, sees only left", "GPT"


def see_left(model: Model) -> None:
    """Mask every later word, as in a GPT."""
    model.mask = partial(model.mask, causal=True)  # type: ignore[method-assign]


def measure(cell: Cell) -> Measured:
    """Pre-train on sentences; predict each word of new ones, and the slide's gap among 20."""
    family = GPT if cell.arm == GPT else BOTH
    surgery = see_left if cell.arm == LEFT else None
    fitted = pretrain(family, cell, cell.size.steps, "english", surgery=surgery)
    model = fitted.model
    tokenizer = fitted.task.tokenizer
    sentences = english_texts("valid")[: cell.size.sentences]
    accuracy = accuracy_by_words_after(model, tokenizer, sentences)
    inside = [accuracy[count] for count in accuracy if count]
    return {
        "accuracy": accuracy,
        "filled": clues_filled(model, tokenizer),
        "inside": sum(inside) / len(inside),
    }


def both_sides(other: str, name: str, x: object = None) -> Callable[[Callable[..., float]], float]:
    """The BERT's advantage."""
    return lambda value: value(BOTH, name, x) - value(other, name, x)


def more_inside(value: Callable[..., float]) -> float:
    """The advantage where words follow the gap, less that where none does."""
    return both_sides(LEFT, "inside")(value) - both_sides(LEFT, "accuracy", 0)(value)


EXPERIMENT = Experiment(
    name="masked",
    claim="A BERT fills a gap better, since it sees the words on both sides.",
    slides=("000 L135", "000 L136", "000 L137"),
    setup=(
        "BERT, the same BERT without a view of later words, and GPT, all of one size, learn "
        "10,000 sentences of everyday English: same text, same steps.",
        "Each word but the first of new sentences is hidden in turn; accuracy of the best guess "
        "by the number of words after the gap.",
        "20 sentences with a gap, by where the clue is; the first: I took my [mask] for a walk.",
    ),
    arms=(BOTH, LEFT, GPT),
    measure=measure,
    checks=(
        Check("Where words follow, BERT beats the left view", both_sides(LEFT, "inside"), 0.03),
        Check("Where words follow, BERT beats GPT", both_sides(GPT, "inside"), 0.03),
        Check("Its advantage is larger there than at the end", more_inside, 0.02),
        Check("At the end they are equal", both_sides(LEFT, "accuracy", 0), 0.05, "same"),
        Check("Clues after the gap are used", both_sides(LEFT, "filled", "clue after"), 0.1),
    ),
    panels=(
        Panel("accuracy", "words after the gap", "accuracy of the hidden word"),
        Panel("filled", "", "sentences filled", "20 sentences with a gap", kind="dots"),
    ),
    small=Size(
        seeds=3, minutes=2, steps=900, width=64, depth=2, batch_tokens=1024, sentences=300
    ),
    large=Size(
        seeds=3, minutes=4, steps=3000, width=256, depth=4, batch_tokens=8192, sentences=1000
    ),
    remark="It may depend on the text: where words are drawn independently, as most are in the "
    "sentences of the grammar, those after a gap cannot tell what is missing.",
    next_steps=("qkv fill --help: fill a gap yourself", "qkv lab masked --set steps=2000"),
)  # fmt: skip
