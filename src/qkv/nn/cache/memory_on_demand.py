"""Memory of a KV cache on a CPU, which takes pages when they are written, and its limit."""

from __future__ import annotations

import math
import mmap
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where Linux tells the memory limit of a container, in version 2 and 1 of control groups."""
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Memory that a forked process does not share; Windows has neither."""


def check_memory(cache_bytes: int) -> None:
    """Raise ValueError if a KV cache is larger than the memory that this process may use.

    Its pages are taken as they are written: the system would end the process when they run out.
    """
    memory = usable_memory()
    if cache_bytes > memory:
        raise ValueError(
            f"cache: {cache_bytes / 2**30:,.1f} GiB of KV cache do not fit into the "
            f"{memory / 2**30:,.1f} GiB of memory of this machine; choose a smaller cache"
        )


def usable_memory() -> float:
    """Bytes of the machine's memory, or of its container's; infinite if the system tells neither.

    Windows tells neither here, and refuses a cache that is too large itself.
    """
    limits = [math.inf]
    with suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    for path in CONTAINER_LIMITS:
        with suppress(ValueError, OSError):  # a version 2 group without a limit says "max"
            limits.append(int(path.read_text()))

    return min(limit for limit in limits if limit > 0)


def zeros_on_demand(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros with the dtype and device of `like`; on a CPU they take memory when they are written.

    PyTorch writes its zeros at once: a server would begin with the whole cache in memory.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)

    size = math.prod(shape) * like.element_size()
    memory = mmap.mmap(-1, max(1, size), **PRIVATE)  # whole pages, which the system clears
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(like.dtype).view(shape)
