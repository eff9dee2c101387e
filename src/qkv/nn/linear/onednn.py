"""oneDNN's product of a CPU, and its prepacked weights: matrices in the order that it reads.

Packing copies a matrix, which pays when one task uses it many times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

Key = tuple[int, ...]
Prepacked = dict[Key, tuple[Tensor, Tensor]]
"""The source and the packed matrix by the source's address and version.

Keeping the source alive prevents its address from being reused as a key.
"""
packed: ContextVar[Prepacked | None] = ContextVar("packed", default=None)
LARGEST = 2**30  # bytes of a model that may be in memory twice


@contextmanager
def prepacking(into: Prepacked | None = None) -> Iterator[None]:
    """Pack every matrix once while the context is open.

    Args:
        into: Where packed matrices are kept; by default only until the context closes.
    """
    token = packed.set({} if into is None else into)
    try:
        yield
    finally:
        packed.reset(token)


def small_enough(model: nn.Module) -> bool:
    """True if a second copy of the weights is small enough to be kept."""
    return sum(parameter.nbytes for parameter in model.parameters()) <= LARGEST


def multiply(
    x: Float[Tensor, "*n E"], weight: Tensor, bias: Float[Tensor, "N"] | None = None
) -> Float[Tensor, "*n N"]:
    """x W^T + b in float32, without gradients.

    Args:
        x: On a CPU, in any layout.
        weight: (N, E), prepacked or without gaps: oneDNN is a thousand times slower otherwise.
        bias: Contiguous: oneDNN ignores strides.
    """
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def as_prepacked(weight: Tensor) -> Tensor:
    """A float32 matrix for oneDNN's kernel, packed inside a `prepacking` context."""
    cache = packed.get()
    if cache is None:
        return weight

    # A weight that was trained since it was packed has a newer version.
    version = 0 if weight.is_inference() else weight._version
    key = (weight.data_ptr(), *weight.shape, version)
    if key not in cache:
        cache[key] = (weight, torch.ops.mkldnn._reorder_linear_weight(weight, None))

    return cache[key][1]
