"""One step's gradients, and the loss on validation: a batch in parts, over the ranks, as if it were
one.
"""

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
from qkv.training.systems.distributed import World, exchanging, settle


def gradients_of(
    objective: nn.Module,
    batch: Batch,
    world: World,
    *,
    parts: int = 1,
    scale: Float[Tensor, ""] | float = 1.0,
    seed: tuple[int, int] = (0, 0),
    say: Callable[[str], object] = print,
) -> tuple[Float[Tensor, ""], int]:
    """The mean loss of a global batch, its gradient times `scale` in the parameters; and in how
    many parts it fitted.

    When the memory does not suffice, the parts are halved: the batch, and so the gradient, stays
    the same.
    """
    rows, count = -(-batch.rows // world.size), max(1, batch.count)
    while True:
        try:
            loss = accumulate(objective, share(batch, world, parts), count, world, scale, seed)
            return world.total(loss) / count, parts
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if parts >= rows or world.size > 1:
                raise MemoryError(no_room(batch, world)) from None

        # Here the error, which held on to the tensors of the pass that failed, is gone.
        objective.zero_grad(set_to_none=True)
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()

        parts = 2 * parts
        say(
            f"Out of memory: a batch now goes in {min(parts, rows)} parts, of {-(-rows // parts)} rows or fewer here."
        )


def accumulate(
    objective: nn.Module,
    parts: list[Batch],
    count: int,
    world: World,
    scale: Tensor | float,
    seed: tuple[int, int],
) -> Float[Tensor, ""]:
    """Gradients add up over the parts; the loss is divided once, by the count of the whole batch."""
    total = torch.zeros((), device=world.device)
    for number, part in enumerate(parts):
        drawn = mixed(
            *seed, world.rank, number
        )  # dropout is a function of the place in the run, too
        if (
            isinstance(objective, Objective)
            and objective.replay
            and len(parts) == 1
            and objective.replay.fits(part)
        ):
            return objective.replay.gradients(
                part.pin(), torch.as_tensor(scale / count, device=world.device), drawn
            )

        torch.manual_seed(drawn)
        with exchanging(objective, now=number == len(parts) - 1):
            loss = objective(part.pin().to(world.device))
            (loss * (scale * world.size / count)).backward()

        total += loss.detach()

    return total


class Validation(NamedTuple):
    loss: float
    """The mean over all of the data."""
    counted: Float[Tensor, "K"]
    """What else the objective counts; nothing, if it counts nothing."""


@torch.no_grad()
def validate(objective: nn.Module, data: TrainingData, world: World, parts: int = 1) -> Validation:
    """Without dropout or label smoothing."""
    objective.eval()
    try:
        total, count = torch.zeros(1, dtype=torch.float64, device=world.device), 0
        for batch in data.ordered():
            for part in share(batch, world, parts):
                total = total + objective(part.pin().to(world.device)).double()

            count += batch.count

        if not count:
            raise ValueError("validation: it asks for no word; give more text to validate on")

        total = world.total(total)
        return Validation(float(total[0]) / count, total[1:].cpu())
    finally:
        settle(objective)
        objective.train()


def share(batch: Batch, world: World, parts: int = 1) -> list[Batch]:
    """This rank's rows in parts, as many on every rank.

    Where rows are missing, a row that asks nothing takes part: the other ranks wait for this one.
    """
    shares = batch.split(world.size)
    mine = shares[world.rank].split(parts) if world.rank < len(shares) else []
    missing = min(parts, -(-batch.rows // world.size)) - len(mine)
    if not missing:
        return mine

    row = batch.part(0, 1)

    return mine + [replace(row, targets=torch.full_like(row.targets, IGNORE))] * missing


def mixed(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def out_of_memory(error: Exception) -> bool:
    told = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator: " in told
    )


def no_room(batch: Batch, world: World) -> str:
    if world.size > 1:
        return "out of memory on one of the machines; give a smaller --micro-batch-tokens, or --recompute"

    return (
        f"out of memory with one row of {batch.ids.shape[1]} tokens at a time; "
        "lower the context or the model's size, or use --recompute"
    )
