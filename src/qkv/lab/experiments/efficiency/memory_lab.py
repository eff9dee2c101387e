"""Half precision, gradient accumulation, gradient checkpointing: what does each save?"""

from __future__ import annotations

from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from qkv.data.batches.batch import Batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.models import GPT, GPTConfig
from qkv.training.objective import Objective
from qkv.training.optimizer import Optimizers
from qkv.training.run_config import OptimizerConfig
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import cpu_slowdown

PLAIN = "float32"
HALF = "half precision (bf16)"
PARTS = "accumulation, 4 micro-batches"
RECOMPUTE = "gradient checkpointing"
ALL = "all three"


def measure(cell: Cell) -> Measured:
    """Count what the forward pass keeps; train some steps and time them."""
    size = cell.size
    half = cell.arm in (HALF, ALL)
    parts = 4 if cell.arm in (PARTS, ALL) else 1
    measured: dict[str, Any] = {"kept": kept_mebibytes(cell, half, parts)}

    # bf16 does not run on every CPU; what it keeps was counted without computing
    if half and cell.device.type == "cpu" and cpu_slowdown(torch.bfloat16) is None:
        return measured

    torch.manual_seed(cell.seed)
    objective = objective_of(cell, half, cell.device)
    optimizers = Optimizers(objective, OptimizerConfig())
    world = World(cell.device)
    no = torch.zeros((), device=cell.device)
    optimizers.set_rate(1e-3, 1e-3)
    losses = []
    seconds = []
    for step in range(size.steps):
        start = perf_counter()
        loss, _ = gradients_of(objective, batch(cell, step), world, parts=parts)
        optimizers.step(no, no + 1)
        optimizers.zero_gradients()
        losses.append(loss.item())
        seconds.append(perf_counter() - start)

    measured["loss"] = fmean(losses[-5:])
    measured["time"] = median(seconds)
    return measured


def objective_of(cell: Cell, half: bool, device: torch.device) -> Objective:
    """A GPT with its loss, in the arm's precision and with the arm's checkpointing."""
    size = cell.size
    sizes = {"width": size.width, "depth": size.depth, "heads": size.width // 32}
    model = GPT(GPTConfig(vocabulary=256, context=size.context, **sizes)).to(device)
    if cell.arm in (RECOMPUTE, ALL):
        recompute_blocks(model)

    return Objective(model, precision="bf16" if half else "float32")


def batch(cell: Cell, step: int) -> Batch:
    """Tokens that count upwards by a random stride: a rule that is quickly learned."""
    random = torch.Generator().manual_seed(1000 * cell.seed + step)
    stride = torch.randint(1, 8, (cell.size.rows, 1), generator=random)
    ids = (stride * torch.arange(cell.size.context + 1)) % 256
    return Batch(ids[:, :-1], ids[:, 1:])


def kept_mebibytes(cell: Cell, half: bool, parts: int) -> float:
    """What is kept for the backward pass beside weights, counted on tensors without numbers."""
    meta = torch.device("meta")
    objective = objective_of(cell, half, meta)
    weights = {storage_of(parameter) for parameter in objective.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[storage_of(tensor)] = tensor
        return tensor

    part = batch(cell, 0).split(parts)[0].to(meta)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        objective(part)

    sizes = [kept[key].untyped_storage().nbytes() for key in kept if key not in weights]
    return sum(sizes) / 2**20


def storage_of(tensor: torch.Tensor) -> int:
    """What tells apart the memory of tensors, also of those without numbers."""
    return tensor.untyped_storage()._cdata


def saving(arm: str) -> Any:
    """The fraction of memory that an arm saves."""
    return lambda value: 1 - value(arm, "kept") / value(PLAIN, "kept")


EXPERIMENT = Experiment(
    name="memory",
    claim="Half precision, gradient accumulation and gradient checkpointing save memory, and the "
    "model learns the same.",
    slides=("002 L94", "002 L95", "002 L96", "002 L97"),
    setup=(
        "A GPT is trained on sequences that count upwards by a random stride.",
        "Kept: bytes that the forward pass keeps for the backward pass, counted exactly.",
        "Accumulation computes the gradient of the same batch in four micro-batches.",
        "Checkpointing keeps the input of each block, and computes the rest again.",
        "Weights stay in float32 in all arms, and so does the loss.",
    ),
    arms=(PLAIN, HALF, PARTS, RECOMPUTE, ALL),
    measure=measure,
    checks=(
        Check("Half precision saves memory", saving(HALF), 0.1, exact=True),
        Check("Gradient accumulation saves memory", saving(PARTS), 0.1, exact=True),
        Check("Gradient checkpointing saves memory", saving(RECOMPUTE), 0.1, exact=True),
        Check(
            "With gradient accumulation the loss is the same",
            lambda value: value(PARTS, "loss") - value(PLAIN, "loss"),
            1e-3,
            "same",
        ),
        Check(
            "With gradient checkpointing the loss is the same",
            lambda value: value(RECOMPUTE, "loss") - value(PLAIN, "loss"),
            1e-3,
            "same",
        ),
    ),
    panels=(
        Panel("kept", "", "MiB kept for the backward pass", "Memory"),
        Panel("time", "", "seconds a step", "Time"),
        Panel("loss", "", "loss of the last steps", "Loss"),
    ),
    timed=True,
    small=Size(seeds=3, minutes=1, steps=30, width=128, depth=8, context=64, rows=16),
    large=Size(seeds=3, minutes=2, steps=50, width=768, depth=12, context=1024, rows=16),
    remark="Checkpointing pays with time: each block is computed twice. Half precision also keeps "
    "a cast copy of the weights during the pass, which is not counted here.",
    next_steps=("qkv train gpt --data my.txt --recompute True --micro-batch-tokens 1024",),
)
