"""Masked words: what is it worth to see both sides of a gap?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.language.grammar_models import (
    clues_filled,
    gap_logits,
    pretrain,
    template_sentences,
)
from qkv.models.model import Model

BOTH, LEFT, GPT = "BERT", "BERT, sees only left", "GPT"
PLACES = range(2, 8)


def see_left(model: Model) -> None:
    """Mask every later word, as in a GPT."""
    model.mask = partial(model.mask, causal=True)  # type: ignore[method-assign]


def measure(cell: Cell) -> Measured:
    """Pre-train on sentences; predict each word of new ones, and the slide's gap among 20."""
    family = GPT if cell.arm == GPT else BOTH
    surgery = see_left if cell.arm == LEFT else None
    data = ("grammar:train", "english:train")
    fitted = pretrain(family, cell, cell.size.steps, data, surgery=surgery)
    tokenizer = fitted.task.tokenizer

    sentences = template_sentences(cell.size.sentences)
    ids = torch.tensor(tokenizer.encode_batch(sentences)).to(cell.device)  # (N, 7)
    right = {}
    for place in PLACES:
        logits = gap_logits(fitted.model, tokenizer, ids, place - 1)
        right[place] = float((logits.argmax(-1) == ids[:, place - 1]).double().mean())

    filled = clues_filled(fitted.model, tokenizer)
    inside = [right[place] for place in PLACES[:-1]]
    return {"accuracy": right, "filled": filled, "inside": sum(inside) / len(inside)}


def both_sides(other: str, name: str, x: object = None) -> Callable[[Callable[..., float]], float]:
    """The BERT's advantage."""
    return lambda value: value(BOTH, name, x) - value(other, name, x)


EXPERIMENT = Experiment(
    name="masked",
    claim="A BERT fills a gap better, since it sees the words on both sides.",
    slides=("000 L135", "000 L136", "000 L137"),
    setup=(
        "BERT, the same BERT without a view of later words, and GPT, of equal size, read "
        "sentences of a grammar and everyday English: same text, same steps.",
        "Each word but the first of new sentences such as 'the tired duck chased a lazy soldier' "
        "is hidden in turn; accuracy of the best guess.",
        "20 sentences with a gap, by where the clue is; the first: I took my [mask] for a walk.",
    ),
    arms=(BOTH, LEFT, GPT),
    measure=measure,
    checks=(
        Check("Inside a sentence both sides beat the left", both_sides(LEFT, "inside"), 0.03),
        Check("Inside a sentence BERT beats GPT", both_sides(GPT, "inside"), 0.03),
        Check("At its end they are equal", both_sides(LEFT, "accuracy", 7), 0.05, "same"),
        Check("Clues after the gap are used", both_sides(LEFT, "filled", "clue after"), 0.1),
    ),
    panels=(
        Panel("accuracy", "hidden word (3: subject, 4: verb, 7: object)", "accuracy"),
        Panel("filled", "", "sentences filled", "20 sentences with a gap", kind="dots"),
    ),
    small=Size(
        seeds=4, minutes=1.5, steps=500, width=64, depth=2, batch_tokens=1024, sentences=300
    ),
    large=Size(
        seeds=5, minutes=4, steps=5000, width=256, depth=4, batch_tokens=8192, sentences=2000
    ),
    next_steps=("qkv fill --help: fill a gap yourself", "qkv lab masked --set steps=2000"),
)  # fmt: skip
