"""Sparse masks: blocks, the Sparse Transformer's patterns, and packed documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from qkv.nn.attention.mask import Index, Mask
from qkv.nn.attention.shape import check_matrix, check_positive, check_shape, check_whole


@dataclass(frozen=True, eq=False)
class Blockwise(Mask):
    """Positions fall into blocks of `size`, and a token sees its own block only.

    Args:
        size: Positions of a block, 1 or more.

    Example:
        >>> Blockwise(2).materialise(1, 4)[0, 0]
        tensor([[False, False,  True,  True]])
    """

    size: int

    def __post_init__(self) -> None:
        check_positive("Block", "size", self.size)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return q // self.size == k // self.size

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first // self.size * self.size, (last // self.size + 1) * self.size


@dataclass(frozen=True, eq=False)
class Strided(Mask):
    """The Sparse Transformer's strided pattern: the last `stride` tokens, and every stride-th one.

    Args:
        stride: About the square root of the context, 1 or more.

    Example:
        >>> Strided(2).materialise(1, 5)[0, 0]
        tensor([[ True, False,  True,  True,  True]])
    """

    stride: int

    def __post_init__(self) -> None:
        check_positive("Strided", "stride", self.stride)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() < self.stride) | ((q - k) % self.stride == 0)


@dataclass(frozen=True, eq=False)
class Fixed(Mask):
    """The Sparse Transformer's fixed pattern: the own block, and the last tokens of every block.

    Args:
        stride: Positions of a block, 1 or more.
        summary: Positions at the end of a block that all queries see.

    Example:
        >>> Fixed(2).materialise(1, 5)[0, 0]
        tensor([[False,  True, False,  True,  True]])
    """

    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        check_positive("Fixed", "stride", self.stride)
        if not 0 < self.summary <= self.stride:
            raise ValueError(
                f"Fixed: summary must be between 1 and stride = {self.stride}, not {self.summary}"
            )

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        same_block = q // self.stride == k // self.stride
        return same_block | (k % self.stride >= self.stride - self.summary)


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """Documents packed into one row do not see each other.

    Documents lie one after another: where the id changes a new one begins, even if the id has
    occurred before.

    Args:
        ids: (B, S), the id of the document at each position.

    Example:
        >>> import torch
        >>> Document(torch.tensor([[0, 0, 1]])).materialise(2, 3)[0, 0]
        tensor([[ True,  True, False],
                [False, False,  True]])
    """

    ids: Int[Tensor, "B S"]
    number: Int[Tensor, "B S"] = field(init=False, repr=False)
    """The documents of a row numbered from 0."""
    begins: Int[Tensor, "B S"] = field(init=False, repr=False)
    """For every position, where its document begins."""
    ends: Int[Tensor, "B S"] = field(init=False, repr=False)
    """For every position, where its document ends."""

    def __post_init__(self) -> None:
        check_matrix("Document", "ids", self.ids)
        check_whole("Document", "ids", self.ids)
        changes = (self.ids[:, 1:] != self.ids[:, :-1]).cumsum(1)  # (B, S - 1)
        number = F.pad(changes, (1, 0))[:, : self.ids.shape[1]].contiguous()  # (B, S)
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "begins", torch.searchsorted(number, number))
        object.__setattr__(self, "ends", torch.searchsorted(number, number, right=True))

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return self.number[b, q] == self.number[b, k]

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        low = self.begins[:, first]
        high = self.ends[:, last]
        if isinstance(first, Tensor):
            return low, high

        return int(low.min()), int(high.max())

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_shape("Document", "ids", self.ids, (B, S))
        if T > S:
            raise ValueError(
                f"Document: {T} queries are more than the {S} keys, so some have no document"
            )
