"""Token and position: may their vectors be summed, multiplied or concatenated?"""

from __future__ import annotations

from typing import Any

import torch

from qkv.data.batches.batch import Batch
from qkv.data.embedded.synthetic import Split
from qkv.data.embedded.synthetic_batches import back_batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import accuracy, fit
from qkv.models import GPT, GPTConfig

VECTORS = ("learned", "sinusoidal")
WAYS = ("sum", "product", "concatenate")
JOINED = {f"{vector}, {way}": (vector, way) for vector in VECTORS for way in WAYS}
ARMS: dict[str, tuple[Any, Any]] = {"none": ("none", "sum"), **JOINED, "rotary": ("rotary", "sum")}
VOCABULARY = 32
DISTANCE = 3


def measure(cell: Cell) -> Measured:
    """Learn to say the token three positions back."""
    size = cell.size
    position, join = ARMS[cell.arm]
    sizes = {"width": size.width, "depth": 1, "heads": 2, "context": size.length}
    config = GPTConfig(
        vocabulary=VOCABULARY,
        position=position,
        join=join,
        tied=False,
        scaled_embedding=True,
        **sizes,
    )
    model = GPT(config).to(cell.device)

    def batch(step: int, split: Split = "train") -> Batch:
        sizes = (32, size.length, VOCABULARY)
        return back_batch(cell.seed, step, *sizes, distance=DISTANCE, split=split)

    losses = fit(model, batch, size.steps, rate=3e-3, seed=cell.seed)
    test = batch(0, "test").to(cell.device)
    with torch.no_grad():
        right = accuracy(model(test.ids), test.targets)

    last = losses[-max(1, size.steps // 10) :]
    return {"accuracy": right, "loss": min(100.0, sum(last) / len(last))}


def better_than_none(arm: str) -> Check:
    return Check(
        f"{arm}: better than no positions",
        lambda value: value(arm, "accuracy") - value("none", "accuracy"),
        relevant=0.1,
    )


EXPERIMENT = Experiment(
    name="joins",
    claim="A model learns positions whether it adds, multiplies or concatenates their vectors.",
    slides=("001 L248",),
    setup=(
        "GPTs with one layer learn to say the token three positions back, among 32 tokens.",
        "Learned or sinusoidal position vectors, joined with the token's in three ways.",
        "No positions (the causal mask alone) and rotary positions for comparison.",
        "Concatenated, token and position share the width, half of it each.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=tuple(better_than_none(arm) for arm in JOINED),
    panels=(
        Panel("accuracy", y="accuracy", title="Three positions back", levels={"chance": 1 / 32}),
        Panel("loss", y="nats", title="Loss of the last steps", log="y"),
    ),
    small=Size(seeds=5, minutes=1.2, steps=400, width=32, length=32),
    large=Size(seeds=3, minutes=3, steps=600, width=128, length=256),
    next_steps=("qkv train gpt --data python --join product", "qkv lab positions"),
)
