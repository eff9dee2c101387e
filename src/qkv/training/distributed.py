"""One process or many: torchrun starts them, PyTorch's own DDP and FSDP2 do the work.

Every rank makes the same global batch and takes its rows of it, so what is learned does not depend on their number.
DDP and FSDP average gradients over the ranks; the loss is divided by the global count and multiplied by their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from qkv.nn.block import Block
from qkv.training.config import Distributed
from qkv.training.precision import DTYPES, Precision


@dataclass(frozen=True)
class World:
    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """This process prints, writes files and prepares data."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on each."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def anyone(self, flag: bool) -> bool:
        return bool(self.total(torch.tensor(float(flag)))) if self.size > 1 else flag

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def in_turn(self) -> _InTurn:
        """The first rank goes ahead; the others follow and find what it left."""
        return _InTurn(self)


class _InTurn:
    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> None:
        if not self.world.first:
            self.world.wait()

    def __exit__(self, *error: Any) -> None:
        if self.world.first:
            self.world.wait()


@contextmanager
def joined(device: str | None) -> Iterator[World]:
    """This process among those that torchrun started, or alone."""
    kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: there is no GPU here that PyTorch can use, so not {device}; use cpu")
    if "RANK" not in os.environ:
        yield World(kind)
        return
    if kind.type == "cuda":
        kind = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(kind)
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind.type == "cuda" else "gloo")
    try:
        yield World(kind, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def spread(objective: nn.Module, world: World, how: Distributed, precision: Precision) -> nn.Module:
    """The objective as every rank calls it."""
    if world.size == 1:
        return objective
    if how == "ddp":
        return DistributedDataParallel(objective)
    dtype = None if precision == "float32" else DTYPES[precision]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    mesh = dist.device_mesh.init_device_mesh(world.device.type, (world.size,))
    for module in objective.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(objective, mesh=mesh, mp_policy=policy)
    return objective


@contextmanager
def exchanging(module: nn.Module, now: bool) -> Iterator[None]:
    """Gradients travel between the ranks only with the last micro-batch."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    waiting = isinstance(module, DistributedDataParallel) and not now
    with module.no_sync() if waiting else nullcontext():  # type: ignore[operator]
        yield
