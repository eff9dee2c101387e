"""Alignment: does attention find the word that is translated, wherever it stands?"""

from __future__ import annotations

from typing import Any

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.translation import translators as tr

LEARNED = {"RNN": 1e-2, "Transformer": 3e-3}
DIAGONAL, FIXED = "diagonal", tr.FIXED
ATTENDED = "fall if the word attended to is hidden"
OTHER = "fall if another word is hidden"


def measure(cell: Cell) -> Measured:
    """Compare attention, or connections that are set in advance, with the grammar's alignment."""
    size = cell.size
    if cell.arm not in LEARNED:
        return {"aligned words": tr.fixed_accuracy(cell.arm == DIAGONAL, size.sentences)}

    config: Any = tr.rnn(size.width) if cell.arm == "RNN" else tr.transformer(size.width)
    model = tr.train_translator(config, size.steps, cell.seed, cell.device, rate=LEARNED[cell.arm])
    heads = tr.alignment_accuracy(model, size.sentences)
    attended, other = tr.effect_of_hiding(model, size.sentences, cell.seed)
    falls = {ATTENDED: attended, OTHER: other}
    return {"aligned words": heads["mean"], "by head": heads, **falls}


def aligns(arm: str) -> Check:
    return Check(
        f"{arm}: more words are aligned than by the best fixed connections",
        lambda value: value(arm, "aligned words") - value(FIXED, "aligned words"),
        relevant=0.1,
    )


def explains(arm: str) -> Check:
    return Check(
        f"{arm}: hiding the word attended to costs more nats than hiding another",
        lambda value: value(arm, ATTENDED) - value(arm, OTHER),
        relevant=1.0,
    )


EXPERIMENT = Experiment(
    name="alignment",
    claim="Attention shows which word is translated, where no fixed connection could find it.",
    slides=("004 L107", "003 L82", "003 L84"),
    setup=(
        "English to Turkish; the grammar knows which English word each Turkish word translates.",
        "Learned attention: RNN with additive attention, Transformer (mean of layers and heads).",
        "Fixed: word t to word t; or to the usual place for t in sentences of that length.",
        "Hiding: how far the log-probability of the right word falls without an English word.",
    ),
    arms=(*LEARNED, DIAGONAL, FIXED),
    measure=measure,
    checks=(*map(aligns, LEARNED), *map(explains, LEARNED)),
    panels=(
        Panel("aligned words", "", "fraction of words", "Strongest weight on the right word"),
        Panel("by head", "", "fraction of words", "By head", "dots", arms=("Transformer",)),
    ),
    small=Size(seeds=4, minutes=1.5, width=64, steps=400, sentences=80),
    large=Size(seeds=4, minutes=4, width=128, steps=400, sentences=500),
    remark="At the small size the mean over all heads of the Transformer aligns nearly every word, "
    "single heads 69% to 95%, so one head's picture can mislead.",
    next_steps=(
        "qkv translate --alignment: the matrix of one sentence",
        "Which layer's heads align best? What do the others attend to?",
    ),
)
