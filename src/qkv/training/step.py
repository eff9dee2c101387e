"""The gradients of one step, and validation: batches in micro-batches, over data-parallel ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import IGNORE, Batch
from qkv.training.objective import Objective
from qkv.training.setup.training_task import TrainingData
from qkv.training.systems.distributed import World, gradient_sync, reshard


class HostCopy:
    """A small tensor on its way to the host, behind the kernels that compute it.

    Reading it waits for those kernels alone, not for what was launched since.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.to("cpu", non_blocking=True)
        self.arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()

        return self.values.tolist()


class PendingStep(NamedTuple):
    """A step that the device is computing; its statistics are read back one step later."""

    step: int
    position: int
    statistics: HostCopy
    """Loss, gradient norm, 1 if the step is bad, fp16's loss scale."""
    tokens: int
    seconds: float


def gradients_of(
    objective: nn.Module,
    batch: Batch,
    world: World,
    *,
    parts: int = 1,
    scale: Float[Tensor, ""] | float = 1.0,
    seed: tuple[int, int] = (0, 0),
    log: Callable[[str], object] = print,
) -> tuple[Float[Tensor, ""], int]:
    """Compute the gradient of the global batch's mean loss, times `scale`.

    The batch is split into `parts` micro-batches, and into more when the memory does not suffice;
    the gradient stays the same.

    Returns:
        The mean loss, and the number of micro-batches that fitted.
    """
    rows = -(-batch.rows // world.size)
    count = max(1, batch.count)
    while True:
        try:
            loss = accumulate(objective, share(batch, world, parts), count, world, scale, seed)
            return world.all_reduce(loss) / count, parts
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if parts >= rows or world.size > 1:
                raise MemoryError(out_of_memory_message(batch, world)) from None

        # Only here, after the except block, are the failed pass's tensors free.
        objective.zero_grad(set_to_none=True)
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()

        parts = 2 * parts
        log(
            f"Out of memory: a batch is now split into {min(parts, rows)} micro-batches, "
            f"of at most {-(-rows // parts)} rows."
        )


def accumulate(
    objective: nn.Module,
    parts: list[Batch],
    count: int,
    world: World,
    scale: Tensor | float,
    seed: tuple[int, int],
) -> Float[Tensor, ""]:
    """Gradient accumulation: gradients of (sum of losses / count) add up over the micro-batches."""
    total = torch.zeros((), device=world.device)
    for number, part in enumerate(parts):
        # Dropout is a function of seed, step, rank and micro-batch.
        dropout_seed = mix_seeds(*seed, world.rank, number)

        # One micro-batch of a known shape: replay its CUDA graph
        graphs = isinstance(objective, Objective) and objective.cuda_graphs
        if graphs and len(parts) == 1:
            part = graphs.shaped(part)
            if graphs.supports(part):
                factor = torch.as_tensor(scale / count, device=world.device)
                captured = graphs.gradients(part.pin(), factor, dropout_seed)
                if captured is not None:
                    return captured

        # Otherwise forward and backward; ranks exchange gradients with the last micro-batch
        torch.manual_seed(dropout_seed)
        with gradient_sync(objective, now=number == len(parts) - 1):
            loss = objective(part.pin().to(world.device))
            (loss * (scale * world.size / count)).backward()

        total += loss.detach()

    return total


@torch.no_grad()
def validate(
    objective: nn.Module, data: TrainingData, world: World, parts: int = 1
) -> tuple[float, Float[Tensor, "K"]]:
    """The mean loss over all targets of the data, without dropout and label smoothing.

    Beside it, the sums that the objective counts for metrics; often none.
    """
    objective.eval()
    try:
        total = torch.zeros(1, dtype=torch.float64, device=world.device)
        count = 0
        for batch in data.ordered():
            for part in share(batch, world, parts):
                total = total + objective(part.pin().to(world.device)).double()

            count += batch.count

        if not count:
            raise ValueError("validation: it has no token to predict; give more text")

        total = world.all_reduce(total)
        return float(total[0]) / count, total[1:].cpu()
    finally:
        reshard(objective)
        objective.train()


def share(batch: Batch, world: World, parts: int = 1) -> list[Batch]:
    """This rank's rows as micro-batches, equally many on every rank.

    A rank with fewer rows than the others adds rows without targets, since the others wait for it.
    """
    shares = batch.split(world.size)
    micro_batches: list[Batch] = []
    if world.rank < len(shares):
        micro_batches = shares[world.rank].split(parts)

    missing = min(parts, -(-batch.rows // world.size)) - len(micro_batches)
    if not missing:
        return micro_batches

    row = batch.part(0, 1)
    empty = replace(row, targets=torch.full_like(row.targets, IGNORE))

    return micro_batches + [empty] * missing


def mix_seeds(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True

    return "DefaultCPUAllocator: " in str(error)


def out_of_memory_message(batch: Batch, world: World) -> str:
    if world.size > 1:
        return (
            "out of memory on one of the machines; "
            "give a smaller --micro-batch-tokens, or --recompute"
        )

    return (
        f"out of memory with one row of {batch.ids.shape[1]} tokens at a time; "
        "lower the context or the model's size, or use --recompute"
    )
