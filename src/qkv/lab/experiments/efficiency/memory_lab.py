"""Half precision, gradient accumulation, gradient checkpointing: what does each save?"""

from __future__ import annotations

from functools import partial
from statistics import fmean, median

import torch

from qkv.data.batches.batch import Batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.efficiency.efficiency_measures import (
    kept_without_parameters,
    saves,
    timed_steps,
)
from qkv.models import GPT, GPTConfig
from qkv.training.objective import Objective
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import Precision, check_precision

PLAIN, HALF, ALL = "float32", "half precision (bf16)", "all three"
PARTS, RECOMPUTE = "accumulation, 4 micro-batches", "gradient checkpointing"


def measure(cell: Cell) -> Measured:
    """Count what the forward pass keeps; train some steps and time them."""
    size = cell.size
    parts = 4 if cell.arm in (PARTS, ALL) else 1
    objective = objective_of(cell)
    kept = kept_without_parameters(objective, batch(cell, 0).split(parts)[0].to(cell.device))
    if cell.arm == ALL:  # the blocks' bf16 weights, which checkpointing holds unseen by hooks
        kept += 2 * sum(weight.numel() for weight in objective.model.stack.parameters())

    losses, seconds = timed_steps(objective, partial(batch, cell), size.steps, cell.device, parts)
    return {"kept": kept / 2**20, "time": median(seconds), "loss": fmean(losses[-5:])}


def objective_of(cell: Cell) -> Objective:
    """A GPT with its loss, in the arm's precision and with the arm's checkpointing."""
    size = cell.size
    precision: Precision = "bf16" if cell.arm in (HALF, ALL) else "float32"
    check_precision(precision, cell.device)
    sizes = {"width": size.width, "depth": size.depth, "heads": size.width // 32}
    model = GPT(GPTConfig(vocabulary=256, context=size.context, **sizes)).to(cell.device)
    if cell.arm in (RECOMPUTE, ALL):
        recompute_blocks(model)

    return Objective(model, precision=precision)


def batch(cell: Cell, step: int) -> Batch:
    """Tokens that count upwards by a random stride: a rule that is quickly learned."""
    random = torch.Generator().manual_seed(1000 * cell.seed + step)
    stride = torch.randint(1, 8, (cell.size.rows, 1), generator=random)
    ids = (stride * torch.arange(cell.size.context + 1)) % 256
    return Batch(ids[:, :-1], ids[:, 1:])


def learns_the_same(arm: str, margin: float) -> Check:
    """The check of an arm's loss."""
    return Check(
        f"The loss changes by less than {margin:g} nats: {arm}",
        lambda value: value(arm, "loss") - value(PLAIN, "loss"), margin, "same",
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="memory",
    claim="Half precision, accumulation and checkpointing save memory; the model learns the same.",
    slides=("002 L94", "002 L95", "002 L96", "002 L97"),
    setup=(
        "A GPT is trained on sequences that count upwards by a random stride.",
        "Kept: bytes that the forward pass keeps for the backward pass; weights are float32.",
        "Accumulation computes the gradient of the same batch in four micro-batches.",
        "Checkpointing keeps the input of each block, and computes the rest again.",
    ),
    arms=(PLAIN, HALF, PARTS, RECOMPUTE, ALL),
    measure=measure,
    checks=(
        saves(HALF, PLAIN, "kept"), learns_the_same(HALF, 0.05),
        saves(PARTS, PLAIN, "kept"), learns_the_same(PARTS, 1e-3),
        saves(RECOMPUTE, PLAIN, "kept"), learns_the_same(RECOMPUTE, 1e-3),
    ),
    panels=(
        Panel("kept", "", "MiB kept for the backward pass", "Memory, counted", "dots"),
        Panel("time", "", "seconds a step", "Time", "dots"),
        Panel("loss", "", "loss of the last steps (nats)", "Loss", "dots"),
    ),
    timed=True,
    small=Size(seeds=3, minutes=0.8, steps=25, width=128, depth=8, context=64, rows=8),
    large=Size(seeds=3, minutes=2, steps=50, width=768, depth=12, context=1024, rows=16),
    remark="Checkpointing pays with time: each block is computed twice. Half precision also keeps "
    "bf16 copies of the weights: for a few tokens they outweigh what all three together save.",
    next_steps=("qkv train gpt --data my.txt --recompute --micro-batch-tokens 1024",),
)  # fmt: skip
