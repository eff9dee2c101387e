"""Matrices in the order in which a CPU's kernel reads them: worth the copy when one task uses them
many times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

Key = tuple[int, ...]
Prepacked = dict[Key, tuple[Tensor, Tensor]]
"""What was packed, and of which matrix: that one stays, so that no other can lie in its place."""
packed: ContextVar[Prepacked | None] = ContextVar("packed", default=None)
LARGEST = 2**30  # bytes of a model of which there may be a second copy


@contextmanager
def prepacking(into: Prepacked | None = None) -> Iterator[None]:
    """While the context is open every matrix is packed once and kept, `into` what is given or for
    so long.
    """
    before = packed.set({} if into is None else into)
    try:
        yield
    finally:
        packed.reset(before)


def small_enough(model: nn.Module) -> bool:
    return sum(each.nbytes for each in model.parameters()) <= LARGEST


def as_prepacked(weight: Tensor) -> Tensor:
    """A float32 matrix for oneDNN's kernel: packed, where that was asked for."""
    kept = packed.get()
    if kept is None:
        return weight

    changes = (
        0 if weight.is_inference() else weight._version
    )  # a weight that was trained since is another
    key = (weight.data_ptr(), *weight.shape, changes)
    if key not in kept:
        kept[key] = (weight, torch.ops.mkldnn._reorder_linear_weight(weight, None))

    return kept[key][1]
