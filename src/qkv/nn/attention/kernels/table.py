"""The table of attention kernels: substitutes for `attend.eager`, each with its conditions.

A kernel is a module that calls `register_kernel`; `attend` tries the kernels in the order of their
ranks and takes the first that supports a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Mask


class AttentionCall(NamedTuple):
    """What a kernel computes: softmax(scale * Q K^T + bias, where the mask allows it) V.

    Args:
        query: (B, H, T, D).
        key: (B, K, S, D); K divides H, and a key head serves a group of query heads.
        value: (B, K, S, X).
        mask: Which keys each query may attend to.
        bias: Numbers added to the scores.
        scale: Factor of the dot products.
        dropout: Probability to drop a weight.

    Example:
        >>> import torch
        >>> AttentionCall(*torch.zeros(3, 1, 2, 4, 8)).scale
        1.0
    """

    query: Float[Tensor, "B H T D"]
    key: Float[Tensor, "B K S D"]
    value: Float[Tensor, "B K S X"]
    mask: Mask | None = None
    bias: Bias | None = None
    scale: float = 1.0
    dropout: float = 0.0


class Kernel(NamedTuple):
    """A substitute for `eager` where no scores or weights are wanted."""

    rank: int
    supports: Callable[[AttentionCall], bool]
    """Whether it can compute a call and is worth it."""
    run: Callable[[AttentionCall], Tensor]
    """The output (B, H, T, X); raises ValueError for a call that it cannot compute."""


KERNELS: dict[str, Kernel] = {}
"""All kernels by name, those with the lowest rank first."""


def register_kernel(
    name: str,
    supports: Callable[[AttentionCall], bool],
    run: Callable[[AttentionCall], Tensor],
    *,
    rank: int = 0,
) -> None:
    """Add a kernel to the table, or replace the one of this name.

    Args:
        name: What `attend(kernel=...)` calls it.
        supports: Whether it can compute a call and is worth it.
        run: From a call to the output (B, H, T, X); it raises ValueError for a call that it cannot
            compute, since `attend(kernel=name)` does not ask `supports`.
        rank: Kernels with a lower rank are tried first; those of this package begin at 10.

    Raises:
        ValueError: If the name is eager, which is the definition.

    Example:
        >>> from qkv.nn.attention import KERNELS
        >>> list(KERNELS)
        ['decode', 'flex', 'sparse_flash', 'block_sparse', 'sdpa']
    """
    if name == "eager":
        raise ValueError("name: eager is the definition of attention, expected another name")

    KERNELS[name] = Kernel(rank, supports, run)
    ranked = sorted(KERNELS.items(), key=lambda item: item[1].rank)
    KERNELS.clear()
    KERNELS.update(ranked)
