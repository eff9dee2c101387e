"""Matrices in the order in which a CPU's kernel reads them: worth the copy when one search uses them many times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Key = tuple[int, int, int]
packed: ContextVar[dict[Key, Tensor] | None] = ContextVar("packed", default=None)


@contextmanager
def packing() -> Iterator[None]:
    """While the context is open, and no weight changes, every matrix is packed once and kept."""
    before = packed.set({})
    try:
        yield
    finally:
        packed.reset(before)


def as_packed(weight: Tensor) -> Tensor:
    """A float32 matrix for oneDNN's kernel: packed, where that was asked for."""
    kept = packed.get()
    if kept is None:
        return weight
    key = (weight.data_ptr(), *weight.shape)
    if key not in kept:
        kept[key] = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return kept[key]
