"""Why a mask? Without it, a model that learns the next token looks at the answer."""

from __future__ import annotations

from contextlib import nullcontext
from math import log

import torch
from torch.nn.functional import cross_entropy

from qkv.data.batches.batch import Batch
from qkv.data.embedded.synthetic_batches import random_batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.mechanism.small_models import Surgery
from qkv.lab.fit import fit
from qkv.lab.surgery import unmasked_training
from qkv.models import GPT, GPTConfig

ARMS: dict[str, Surgery] = {"with mask": nullcontext, "without mask": unmasked_training}
VOCABULARY = 32
CHANCE = log(VOCABULARY)
HIGHEST = 50.0


def measure(cell: Cell) -> Measured:
    """Learn the next of random tokens, which nobody can know; then ask with the mask."""
    size = cell.size
    sizes = {"width": size.width, "depth": 2, "heads": 2, "context": size.length}
    model = GPT(GPTConfig(vocabulary=VOCABULARY, **sizes)).to(cell.device)

    def batch(step: int) -> Batch:
        return random_batch(cell.seed, step, 16, size.length, VOCABULARY)

    with ARMS[cell.arm](model):
        losses = fit(model, batch, size.steps, rate=3e-3, seed=cell.seed)

    test = random_batch(cell.seed, 0, 64, size.length, VOCABULARY, split="test").to(cell.device)
    with torch.no_grad():
        asked = cross_entropy(model(test.ids).flatten(0, 1), test.targets.flatten())

    tenth = max(1, size.steps // 10)
    curve = {}
    for step in range(0, size.steps, tenth):
        part = losses[step : step + tenth]
        curve[step + len(part)] = min(HIGHEST, sum(part) / len(part))

    return {"training loss": curve, "last": curve[max(curve)], "asked": min(HIGHEST, float(asked))}


EXPERIMENT = Experiment(
    name="cheating",
    claim="The causal mask prevents cheating: without it, a model copies the next token.",
    slides=("000 L94", "000 L97", "001 L181"),
    setup=(
        "GPTs learn to predict the next of 32 random tokens, which nobody can know.",
        "One has a causal mask in training, the other has none; data and initial weights agree.",
        "An honest model has a loss of ln 32 = 3.47 nats.",
        "After training, both read new sequences with the mask, as in generation.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "With the mask, the training loss stays at ln 32",
            lambda value: value("with mask", "last") - CHANCE,
            relevant=0.1,
            expects="same",
        ),
        Check(
            "Without the mask, it falls below ln 32",
            lambda value: CHANCE - value("without mask", "last"),
            relevant=1.0,
        ),
        Check(
            "Asked with the mask, the model that cheated is worse than the other",
            lambda value: value("without mask", "asked") - value("with mask", "asked"),
            relevant=0.5,
        ),
    ),
    panels=(
        Panel("training loss", "step", "nats", "Training", levels={"ln 32": CHANCE}),
        Panel("asked", y="nats", title="Asked with the mask", levels={"ln 32": CHANCE}),
    ),
    small=Size(seeds=5, minutes=0.3, steps=300, width=32, length=32),
    large=Size(seeds=8, minutes=2, steps=1500, width=128, length=128),
    remark="Random tokens make cheating visible at once. In a short trial on real text, a model "
    "without mask was hardly better than one with it; it may have had yet to learn to copy.",
    next_steps=(
        "qkv lab mask: scores and weights with and without the mask.",
        "qkv look smollm2 'the quick brown fox' --mask none: a trained model without its mask.",
        "qkv lab cheating --set steps=1000: how bad does the model get that cheats for longer?",
    ),
)
