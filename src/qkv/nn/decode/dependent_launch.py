"""Programmatic dependent launch: a GPU kernel starts while the kernel before it is still running.

A decode step is a chain of kernels of a few microseconds each. Without dependent launch, every
kernel waits for the end of the one before, is then launched, and only then begins to read its
weights. With it, the kernel is launched early, reads its weights, and waits until the earlier
kernels are done before it reads their results. Three rules keep this correct:

- Before `wait` a kernel reads only what no kernel of the same step writes: weights, the number of
  the slot, and the keys and values of earlier steps.
- Every kernel calls `wait` before its first write. So when one kernel is past its `wait`, all
  kernels before it have ended, and memory may be reused as without dependent launch.
- The first kernel of a step is launched the ordinary way, after all kernels of the last step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # no Triton, or one older than dependent launch
    triton = None

HOPPER = (9, 0)
chain = threading.local()


@lru_cache
def device_supports(device: int) -> bool:
    """True for a Hopper GPU or a newer one."""
    return triton is not None and torch.cuda.get_device_capability(device) >= HOPPER


@contextmanager
def chained(tickets: Int[Tensor, "N"] | None = None) -> Iterator[None]:
    """Launch the kernels of this thread early while the context is open, where the GPU can.

    Args:
        tickets: Zeros that belong to this chain alone, by which the programs of a kernel count how
            many of them have finished; they are zeros again afterwards.
    """
    chain.active = True
    chain.tickets = tickets
    try:
        yield
    finally:
        chain.active = False
        chain.tickets = None


def in_chain() -> bool:
    """True while this thread launches a chain of kernels."""
    return getattr(chain, "active", False)


def tickets_for(programs: int) -> Int[Tensor, "N"] | None:
    """The tickets of the chain, if there are enough."""
    tickets: Tensor | None = getattr(chain, "tickets", None)
    if tickets is None or len(tickets) < programs:
        return None

    return tickets


def launch_options() -> dict[str, bool]:
    """Keyword arguments for the launch of a Triton kernel with a parameter PDL."""
    if in_chain() and device_supports(torch.cuda.current_device()):
        return {"PDL": True, "launch_pdl": True}

    return {"PDL": False}


if triton is not None:

    @triton.jit
    def start_next(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
        """Let the next kernel start as soon as all programs of this one have come here."""
        if PDL:
            gdc_launch_dependents()

    @triton.jit
    def wait(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
        """Wait until all earlier kernels have ended and their results can be read."""
        if PDL:
            gdc_wait()

    @triton.jit
    def prefetch(pointers, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
        """Bring the cache lines at these addresses into the L2 cache."""
        if PDL:
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
                "=r,l",
                [pointers],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
