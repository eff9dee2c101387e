"""Teacher forcing: what does a translator gain from reading the right words in training?"""

from __future__ import annotations

from typing import Any

import torch

from qkv.data.batches.batch import Batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.translation import translators as tr
from qkv.lab.surgery import free_running
from qkv.models.model import Model

# Model, and how often its input is its own prediction
ARMS = {
    "RNN, forced": ("rnn", 0.0),
    "RNN, half and half": ("rnn", 0.5),
    "RNN, free-running": ("rnn", 1.0),
    "Transformer, forced": ("transformer", 0.0),
    "Transformer, free-running": ("transformer", 1.0),
}


def measure(cell: Cell) -> Measured:
    """Train on the right words or on the model's own, and follow the BLEU of its translations."""
    size = cell.size
    family, share = ARMS[cell.arm]
    steps = size.steps
    config: Any = tr.rnn(size.width)
    if family == "transformer":
        config = tr.transformer(size.width)
        steps //= 2

    def own_words(model: Model, batch: Batch, step: int) -> Batch:
        generator = torch.Generator().manual_seed(cell.seed * 100_000 + step)
        return free_running(model, batch, share=share, generator=generator)

    rate = {"rnn": 1e-2, "transformer": 3e-3}[family]
    change = own_words if share else None
    (model,), curve = tr.follow(cell, config, steps, rate=rate, change=change)
    mean = sum(curve.values()) / len(curve)
    errors = tr.errors_by_place(model, size.sentences)
    return {"BLEU": curve, "mean BLEU": mean, "errors": errors}


def faster(family: str) -> Check:
    return Check(
        f"{family}: teacher forcing has a better BLEU, averaged over the training",
        lambda value: (
            value(f"{family}, forced", "mean BLEU") - value(f"{family}, free-running", "mean BLEU")
        ),
        relevant=5.0,
    )


EXPERIMENT = Experiment(
    name="forcing",
    claim="Teacher forcing makes a model that generates word by word learn faster.",
    slides=("003 L38",),
    setup=(
        "English to Turkish; in the test sentences no noun occurs with its verb as in training.",
        "Forced: the decoder reads the right words before. Free-running: its own predictions. Half "
        "and half: a coin decides for each word.",
        "Same weights at the start, same sentences, same loss; only the decoder's input differs. "
        "The Transformer gets half as many steps, since it needs fewer.",
        "BLEU of greedy translations, in which every model reads its own words.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(faster("RNN"), faster("Transformer")),
    panels=(
        Panel("BLEU", "step", "BLEU", "How fast each learns"),
        Panel("errors", "place in the sentence", "fraction of words wrong", "After the training"),
    ),
    small=Size(seeds=4, minutes=2.5, width=64, steps=480, points=8, sentences=200),
    large=Size(seeds=4, minutes=4, width=128, steps=400, points=10, sentences=1000),
    remark="The lecture only names the technique. The curve of half and half tells if a mixture is "
    "a compromise.",
    next_steps=(
        "qkv lab forcing --set steps=1000: does free-running catch up?",
        "Does half and half make fewer errors late in the sentence than teacher forcing?",
    ),
)
