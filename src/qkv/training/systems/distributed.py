"""One process or many: torchrun starts them, PyTorch's own DDP and FSDP2 do the work.

Every rank makes the same global batch and takes its rows of it, so what is learned does not depend
on their number. DDP and FSDP average gradients over the ranks; the loss is divided by the global
count and multiplied by their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from qkv.nn.block import Block
from qkv.training.run_config import Distributed
from qkv.training.systems.precision import DTYPES, Precision

PATIENCE = timedelta(
    days=7
)  # others wait while the first prepares data; a process that dies is noticed at once


@dataclass(frozen=True)
class World:
    device: torch.device
    rank: int = 0
    size: int = 1
    talk: dist.ProcessGroup | None = None
    """What the ranks tell each other besides gradients, through the CPU; None for a process alone.
    """

    @property
    def first(self) -> bool:
        """This process prints, writes files and prepares data."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on each."""
        if self.talk is not None:
            dist.all_reduce(tensor)

        return tensor

    def anyone(self, flag: bool) -> bool:
        if self.talk is None:
            return flag

        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, group=self.talk)
        return bool(flags)

    def agreed(self, number: int) -> int:
        """What the first rank says, on each."""
        if self.talk is None:
            return number

        said = torch.tensor(number)
        dist.broadcast(said, src=0, group=self.talk)

        return int(said)

    def wait(self) -> None:
        if self.talk is not None:
            dist.barrier(self.talk)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Goes well for all ranks or for none: the others do not wait for one that has failed in
        here.

        Who has failed says why; the others leave without a word. In here they do not talk with each
        other.
        """
        try:
            yield
        except BaseException:
            self.anyone(True)
            raise

        if self.anyone(False):
            raise SystemExit(1)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank goes ahead; the others follow and find what it left."""
        if not self.first:
            with self.together():
                pass

        with self.together():
            yield

        if self.first:
            with self.together():
                pass


def device_named(device: str | None) -> torch.device:
    """The device that a person asks for; the GPU unless given, if there is one."""
    try:
        kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device: expected cpu, cuda, cuda:1 ..., not {device}") from error

    if kind.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device: there is no GPU here that PyTorch can use, so not {device}; use cpu"
        )

    return kind


def under_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "RANK" in os.environ


def first_process() -> bool:
    """Whether this is the process that prints and writes, before and after the ranks are joined."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: str | None) -> Iterator[World]:
    """This process among those that torchrun started, or alone."""
    kind = device_named(device)
    if not under_torchrun():
        yield World(kind)
        return

    if kind.type == "cuda":
        number, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if number >= gpus:
            raise ValueError(
                f"device: each process needs its own GPU, so start torchrun with --nproc-per-node {gpus}"
            )

        kind = torch.device("cuda", number)
        torch.cuda.set_device(kind)

    dist.init_process_group("cpu:gloo,cuda:nccl" if kind.type == "cuda" else "gloo")
    talk = dist.new_group(backend="gloo", timeout=PATIENCE)
    world = World(kind, dist.get_rank(), dist.get_world_size(), talk)

    try:
        yield world
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "/gloo/" in str(error):
            raise RuntimeError(
                "another process of this run has ended, and this one cannot go on without it; "
                "--resume goes on from the last checkpoint"
            ) from error

        raise

    # Not after an error: a process that ends is noticed by the others, one that waits for them may
    # wait for ever.
    world.wait()
    dist.destroy_process_group()


def sharded(world: World, how: Distributed) -> bool:
    return world.talk is not None and how == "fsdp"


def spread(objective: nn.Module, world: World, how: Distributed, precision: Precision) -> nn.Module:
    """The objective as every rank calls it. What is to be sharded may come on the CPU: it moves in
    pieces.
    """
    if world.talk is None:
        return objective
    if not sharded(world, how):
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)

    dtype = None if precision == "float32" else DTYPES[precision]
    # What goes into a block is of the right dtype already, or is float32 for a reason, as rotary
    # angles are.
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    mesh = dist.device_mesh.init_device_mesh(world.device.type, (world.size,))

    for module in list(objective.modules()):
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


def settle(module: nn.Module) -> None:
    """After a forward pass that no backward pass follows, each rank has its own part of the weights
    again.
    """
    if isinstance(module, FSDPModule):
        module.reshard()


def gathered(tensors: Iterable[tuple[str, Tensor]], here: bool) -> dict[str, Tensor]:
    """The tensors, whole, on the rank that says `here`; nothing on the others, which must ask all
    the same.

    Those that are sharded come one at a time and move to the CPU: no device need hold all of a
    sharded model.
    """
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
            if here:
                whole[name] = tensor.cpu()
        elif here:
            whole[name] = tensor

    return whole


def like(saved: Tensor, parameter: Tensor) -> Tensor:
    """A saved tensor, placed and sharded as its parameter is; a single number (AdamW's step) only
    placed.
    """
    saved = saved.to(parameter.device)
    if (
        isinstance(parameter, DTensor) and saved.dim()
    ):  # every rank has read it: each takes its own part
        return distribute_tensor(
            saved, parameter.device_mesh, parameter.placements, src_data_rank=None
        )

    return saved
