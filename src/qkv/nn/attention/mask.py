"""Masks: which keys each query may attend to. A mask is a description, not a matrix.

Every mask answers one question, `allows(b, h, q, k)`: in row b and head h, may the query at
position q attend to the key at position k? With index tensors that broadcast, the answer is the
matrix; inside a kernel, it is one bit. A mask that also knows its `reach` (the range of keys that
some consecutive queries can see) lets a kernel skip the rest. Masks combine with `&`.

Positions are those of the keys, 0 to S-1, and the T queries are the last T of them, so the same
causal mask serves training (T = S) and decoding with a KV cache (T = 1).

The masks of sparse attention (Blockwise, Strided, Fixed, Document) are in sparse_mask.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.nn.attention.shape import (
    check_fits_scores,
    check_matrix,
    check_positive,
    check_shape,
    check_whole,
    four_dimensions,
)

Index = Tensor | int


@dataclass(frozen=True, eq=False)
class Mask:
    """The base of all masks: a subclass defines `allows`, and `reach` if it is sparse.

    Example:
        >>> class Even(Mask):
        ...     def allows(self, b, h, q, k):
        ...         return (k % 2 == 0) & (q == q)
        >>> Even().materialise(1, 4)[0, 0]
        tensor([[ True, False,  True, False]])
    """

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        """Whether query q may attend to key k in row b and head h, for tensors that broadcast.

        Raises:
            TypeError: If the subclass does not define it.
        """
        raise TypeError(f"{type(self).__name__} must define allows(b, h, q, k)")

    def reach(self, first: Any, last: Any) -> tuple[Any, Any] | None:
        """Keys [low, high) that queries first..last can see, not cut to 0..S; None for any key.

        Positions are numbers, or tensors of them.
        """
        return None

    def check(self, B: int, H: int, T: int, S: int) -> None:
        """Raise if this mask cannot describe scores of shape (B, H, T, S)."""

    @property
    def rows(self) -> int:
        """Number of different batch rows that this mask describes; 1 if all rows are alike."""
        return 1

    @property
    def heads(self) -> int:
        """Number of different heads that this mask describes; 1 if all heads are alike."""
        return 1

    @property
    def members(self) -> tuple[Mask, ...]:
        """The masks that `&` combined into this one."""
        return (self,)

    def __and__(self, other: Mask | Tensor) -> Mask:
        return All((*self.members, *as_mask(other).members))

    def __bool__(self) -> bool:
        raise TypeError("masks combine with &: `and` would take one of them and drop the other")

    def materialise(
        self, T: int, S: int, device: torch.device | str | None = None
    ) -> Bool[Tensor, "B H T S"]:
        """The matrix for the last T of S positions, True where attending is allowed."""
        q = torch.arange(S - T, S, device=device).view(T, 1)
        return self.at(q, torch.arange(S, device=device))

    def at(self, q: Tensor, k: Tensor) -> Bool[Tensor, "B H ..."]:
        """The answer for index tensors of positions.

        B or H is 1 if the mask does not depend on the row or the head.
        """
        grid = torch.broadcast_shapes(q.shape, k.shape)
        ones = (1,) * len(grid)
        b = torch.arange(self.rows, device=q.device).view(-1, 1, *ones)
        h = torch.arange(self.heads, device=q.device).view(-1, *ones)

        return self.allows(b, h, q, k).expand(self.rows, self.heads, *grid)

    def layout(
        self, T: int, S: int, size: int, device: torch.device
    ) -> Bool[Tensor, "B N M"] | None:
        """Which tiles of size x size pairs may hold an allowed pair; None if all may."""
        first = torch.arange(S - T, S, size, device=device)  # (N,)
        reach = self.reach(first, (first + size).clamp(max=S) - 1)
        if reach is None:
            return None

        low, high = (end.unsqueeze(-1) for end in reach)  # (N, 1), or (B, N, 1)
        tile = torch.arange(0, S, size, device=device)  # (M,)
        layout = (tile < high) & (tile + size > low)

        if layout.dim() == 2:
            layout = layout.unsqueeze(0)

        return layout


@dataclass(frozen=True, eq=False)
class All(Mask):
    """What `&` gives: a pair is allowed if every member allows it.

    Args:
        parts: The members.

    Example:
        >>> All((Causal(), Window(2))).materialise(1, 4)[0, 0]
        tensor([[False, False,  True,  True]])
    """

    parts: tuple[Mask, ...]

    @property
    def members(self) -> tuple[Mask, ...]:
        return self.parts

    @property
    def rows(self) -> int:
        return max(part.rows for part in self.parts)

    @property
    def heads(self) -> int:
        return max(part.heads for part in self.parts)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return reduce(torch.logical_and, (part.allows(b, h, q, k) for part in self.parts))

    def reach(self, first: int, last: int) -> tuple[int, int] | None:
        lows = []
        highs = []
        for part in self.parts:
            reach = part.reach(first, last)
            if reach is not None:
                lows.append(reach[0])
                highs.append(reach[1])

        return (max(lows), min(highs)) if lows else None

    def layout(
        self, T: int, S: int, size: int, device: torch.device
    ) -> Bool[Tensor, "B N M"] | None:
        common = None
        for part in self.parts:
            layout = part.layout(T, S, size, device)
            if common is None:
                common = layout
            elif layout is not None:
                common = common & layout

        return common

    def check(self, B: int, H: int, T: int, S: int) -> None:
        for part in self.parts:
            part.check(B, H, T, S)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A query attends to itself and to earlier positions: k <= q.

    Example:
        >>> Causal().materialise(2, 3)[0, 0]
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first * 0, last + 1


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """Sliding-window attention: only keys nearer than `width`, |q - k| < width.

    With Causal, a token sees itself and the width - 1 tokens before it.

    Args:
        width: The window, 1 or more.

    Example:
        >>> (Causal() & Window(2)).materialise(1, 4)[0, 0]
        tensor([[False, False,  True,  True]])
    """

    width: int

    def __post_init__(self) -> None:
        check_positive("Window", "width", self.width)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return (q - k < self.width) & (k - q < self.width)

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first - self.width + 1, last + self.width


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are tokens and not padding.

    Args:
        padding_mask: (B, S), True for a token and False for padding.

    Example:
        >>> import torch
        >>> Padding(torch.tensor([[True, True, False]])).materialise(1, 3)[0, 0]
        tensor([[ True,  True, False]])
    """

    padding_mask: Bool[Tensor, "B S"]

    def __post_init__(self) -> None:
        check_matrix("Padding", "padding_mask", self.padding_mask)
        if self.padding_mask.dtype != torch.bool:
            raise TypeError(
                "Padding: padding_mask must be bool (True for a token, False for padding), "
                f"not {self.padding_mask.dtype}"
            )

    @classmethod
    def of_lengths(cls, lengths: Int[Tensor, "B"], S: int) -> Padding:
        """The mask of rows that have `lengths` tokens, followed by padding up to S."""
        return cls(torch.arange(S, device=lengths.device) < lengths.unsqueeze(1))

    @property
    def rows(self) -> int:
        return self.padding_mask.shape[0]

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return self.padding_mask[b, k]

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_shape("Padding", "padding_mask", self.padding_mask, (B, S))


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Prefix LM: every query sees the first `length` tokens of its row; the rest is causal.

    Args:
        length: One number for all rows, or (B,).

    Example:
        >>> Prefix(2).materialise(3, 3)[0, 0]
        tensor([[ True,  True, False],
                [ True,  True, False],
                [ True,  True,  True]])
    """

    length: int | Int[Tensor, "B"]

    def __post_init__(self) -> None:
        if not isinstance(self.length, Tensor):
            return

        check_whole("Prefix", "length", self.length)
        if self.length.dim() != 1:
            raise ValueError(f"Prefix: length must have shape (B,), not {tuple(self.length.shape)}")

    @property
    def rows(self) -> int:
        return self.length.shape[0] if isinstance(self.length, Tensor) else 1

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        length = self.length[b] if isinstance(self.length, Tensor) else self.length
        return (k < length) | (k <= q)

    def check(self, B: int, H: int, T: int, S: int) -> None:
        if isinstance(self.length, Tensor):
            check_shape("Prefix", "length", self.length, (B,))


@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """A mask given as its matrix.

    Args:
        allowed: (T, S), (B, T, S) or (B, H, T, S), True where attending is allowed.

    Example:
        >>> import torch
        >>> Explicit(torch.tensor([[True, False]])).materialise(1, 2).shape
        torch.Size([1, 1, 1, 2])
    """

    allowed: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise TypeError(
                f"mask must be bool, True where attending is allowed, not {self.allowed.dtype}; "
                "numbers to add to the scores are a bias"
            )
        if not 2 <= self.allowed.dim() <= 4:
            raise ValueError(
                f"mask must have 2, 3 or 4 dimensions, not shape {tuple(self.allowed.shape)}"
            )

        object.__setattr__(self, "allowed", four_dimensions(self.allowed))  # (B, H, T, S)

    @property
    def rows(self) -> int:
        return self.allowed.shape[0]

    @property
    def heads(self) -> int:
        return self.allowed.shape[1]

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        offset = self.allowed.shape[3] - self.allowed.shape[2]
        if self.rows == 1:
            b = 0

        if self.heads == 1:
            h = 0

        return self.allowed[b, h, q - offset, k]

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_fits_scores("mask", self.allowed, (B, H, T, S), may_be_one="BH")


def all_of(*masks: Mask | None) -> Mask | None:
    """Combine those masks that are not None.

    Args:
        *masks: Masks, or None for no restriction.

    Returns:
        Their combination; None if all are None.

    Example:
        >>> all_of(None, Causal())
        Causal()
    """
    combined: Mask | None = None
    for mask in masks:
        if combined is None:
            combined = mask
        elif mask is not None:
            combined = combined & mask

    return combined


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is; a bool tensor as an `Explicit` one."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Explicit(mask)

    raise TypeError(f"mask must be a Mask or a bool tensor, not {type(mask).__name__}")
