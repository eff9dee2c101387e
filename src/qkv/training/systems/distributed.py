"""Data-parallel training with torchrun: process group, DDP and FSDP2.

Every rank makes the same global batch and takes its rows, so that what is learned does not depend
on the number of ranks. DDP and FSDP average gradients over the ranks; the loss is divided by the
global count and multiplied by the number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.nn.block import Block
from qkv.training.run_config import Distributed
from qkv.training.systems.precision import DTYPES, Precision

# FSDP is imported where it is used: importing it takes a second, which every command would pay.
if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

TIMEOUT = timedelta(days=7)
"""The other ranks wait while the first prepares data; a rank that dies is noticed at once."""


@dataclass(frozen=True)
class World:
    """This process among the data-parallel ranks; a single process by default."""

    device: torch.device
    rank: int = 0
    size: int = 1
    cpu_group: dist.ProcessGroup | None = None
    """Process group for everything but gradients, on the CPU; None for a single process."""

    @property
    def first(self) -> bool:
        """Whether this process prints, writes files and prepares data."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on every rank."""
        if self.cpu_group is not None:
            dist.all_reduce(tensor)

        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is True on any rank."""
        if self.cpu_group is None:
            return flag

        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, group=self.cpu_group)
        return bool(flags)

    def broadcast(self, number: int) -> int:
        """The first rank's number, on every rank."""
        if self.cpu_group is None:
            return number

        numbers = torch.tensor(number)
        dist.broadcast(numbers, src=0, group=self.cpu_group)

        return int(numbers)

    def barrier(self) -> None:
        if self.cpu_group is not None:
            dist.barrier(self.cpu_group)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """The block succeeds on all ranks or ends all of them: none waits for one that failed.

        The rank that failed raises its error, the others exit silently. The block itself must not
        communicate between ranks.
        """
        try:
            yield
        except BaseException:
            self.any_rank(True)
            raise

        if self.any_rank(False):
            raise SystemExit(1)

    @contextmanager
    def first_rank_first(self) -> Iterator[None]:
        """The first rank runs the block, then the others do, with what it left on the disk."""
        if not self.first:
            with self.all_or_none():
                pass

        with self.all_or_none():
            yield

        if self.first:
            with self.all_or_none():
                pass


def device_named(device: str | None) -> torch.device:
    """The device of this name; by default a GPU if there is one, else the CPU."""
    if not device:
        device = "cuda" if torch.cuda.is_available() else "cpu"

    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: expected cpu, cuda, cuda:1 ..., not {device}") from error

    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device: there is no GPU here that PyTorch can use, so not {device}; use cpu"
        )

    return chosen


def under_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "RANK" in os.environ


def first_process() -> bool:
    """Whether this process prints and writes; also before and after the process group exists."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def join_process_group(device: str | None) -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun, a world of one."""
    chosen = device_named(device)
    if not under_torchrun():
        yield World(chosen)
        return

    backend = "gloo"
    if chosen.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        chosen = local_gpu()
        torch.cuda.set_device(chosen)

    dist.init_process_group(backend)
    cpu_group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    world = World(chosen, dist.get_rank(), dist.get_world_size(), cpu_group)

    try:
        yield world
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "/gloo/" in str(error):
            raise RuntimeError(
                "another process of this run has ended, and this one cannot continue without it; "
                "--resume continues from the last checkpoint"
            ) from error

        raise

    # Not after an error: the other ranks notice a process that ends, but waiting for them here
    # could last for ever.
    world.barrier()
    dist.destroy_process_group()


def local_gpu() -> torch.device:
    """The GPU of this process, by its rank on this machine."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    gpus = torch.cuda.device_count()
    if rank >= gpus:
        raise ValueError(
            f"device: each process needs its own GPU, "
            f"so start torchrun with --nproc-per-node {gpus}"
        )

    return torch.device("cuda", rank)


def uses_fsdp(world: World, distributed: Distributed) -> bool:
    """Whether the model is sharded over the ranks."""
    return world.cpu_group is not None and distributed == "fsdp"


def parallelize(
    objective: nn.Module, world: World, distributed: Distributed, precision: Precision
) -> nn.Module:
    """The objective as every rank calls it, under DDP or FSDP.

    An objective for FSDP may be on the CPU: it moves to the devices shard by shard.
    """
    if world.cpu_group is None:
        return objective
    if not uses_fsdp(world, distributed):
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = None
    if precision != "float32":
        dtype = DTYPES[precision]

    # The inputs of a block have the right dtype already, or are float32 on purpose, as rotary
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
def gradient_sync(module: nn.Module, now: bool) -> Iterator[None]:
    """Whether the backward pass in the context exchanges gradients between the ranks."""
    if is_sharded(module):
        module.set_requires_gradient_sync(now)

    context: AbstractContextManager[Any] = nullcontext()
    if isinstance(module, DistributedDataParallel) and not now:
        context = module.no_sync()

    with context:
        yield


def reshard(module: nn.Module) -> None:
    """Free the gathered FSDP weights after a forward pass that no backward pass follows."""
    if is_sharded(module):
        module.reshard()


def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Whether FSDP has divided the module among the ranks; never in a single process."""
    if not dist.is_initialized():
        return False

    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)
