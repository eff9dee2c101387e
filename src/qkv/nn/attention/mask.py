"""Who may look at whom. A mask is a described value, not a matrix.

Every mask answers one question, `allows(b, h, q, k)`: in row b and head h, may the query at
position q look at the key at position k? Asked with index tensors that broadcast, the answer is the
matrix; asked inside a kernel, it is one bit. A mask that also knows its `reach` (the range of keys
that a run of queries can see at all) lets a kernel skip the rest. Masks combine with `&`.

Positions are those of the keys, 0 to S-1, and the T queries are the last T of them, so the same
causal mask serves training (T = S) and decoding with a cache (T = 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must say what it allows")

    def reach(self, first: Any, last: Any) -> tuple[Any, Any] | None:
        """Keys [low, high) that queries at positions first..last can see at all, not cut to 0..S;
        None for any key.

        Positions are numbers, or tensors of them.
        """
        return None

    def layout(
        self, T: int, S: int, size: int, device: torch.device
    ) -> Bool[Tensor, "B N M"] | None:
        """Which tiles of size x size pairs hold anything allowed; None when it may be all of them."""
        first = torch.arange(S - T, S, size, device=device)  # (N,)
        reach = self.reach(first, (first + size).clamp(max=S) - 1)
        if reach is None:
            return None

        low, high = (end.unsqueeze(-1) for end in reach)  # (N, 1), or (B, N, 1)
        tile = torch.arange(0, S, size, device=device)  # (M,)
        layout = (tile < high) & (tile + size > low)

        return layout if layout.dim() == 3 else layout.unsqueeze(0)

    def check(self, B: int, H: int, T: int, S: int) -> None:
        """Raise when this mask cannot describe scores of shape (B, H, T, S)."""

    @property
    def rows(self) -> int:
        """How many different batch rows this mask describes; 1 when every row has the same mask."""
        return 1

    @property
    def heads(self) -> int:
        """How many different heads this mask describes; 1 when every head has the same mask."""
        return 1

    def __bool__(self) -> bool:
        raise TypeError("masks combine with &: `and` would take one of them and drop the other")

    def __and__(self, other: Mask | Tensor) -> Mask:
        return All((*self.members, *as_mask(other).members))

    @property
    def members(self) -> tuple[Mask, ...]:
        return (self,)

    def at(self, q: Tensor, k: Tensor) -> Bool[Tensor, "B H ..."]:
        """The answer for index tensors of positions. B and H are 1 where the mask does not depend
        on them.
        """
        grid = torch.broadcast_shapes(q.shape, k.shape)
        ones = (1,) * len(grid)
        b = torch.arange(self.rows, device=q.device).view(-1, 1, *ones)
        h = torch.arange(self.heads, device=q.device).view(-1, *ones)

        return self.allows(b, h, q, k).expand(self.rows, self.heads, *grid)

    def materialise(
        self, T: int, S: int, device: torch.device | str | None = None
    ) -> Bool[Tensor, "B H T S"]:
        """The matrix: True where looking is allowed."""
        return self.at(
            torch.arange(S - T, S, device=device).view(T, 1), torch.arange(S, device=device)
        )


@dataclass(frozen=True, eq=False)
class All(Mask):
    """Every member must allow it: what `&` makes."""

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
        reaches = [part.reach(first, last) for part in self.parts]
        ranges = [reach for reach in reaches if reach is not None]
        return (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else None

    def layout(
        self, T: int, S: int, size: int, device: torch.device
    ) -> Bool[Tensor, "B N M"] | None:
        known = [part.layout(T, S, size, device) for part in self.parts]
        layouts = [layout for layout in known if layout is not None]
        return reduce(torch.logical_and, layouts) if layouts else None

    def check(self, B: int, H: int, T: int, S: int) -> None:
        for part in self.parts:
            part.check(B, H, T, S)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """No looking ahead: k <= q."""

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first * 0, last + 1


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """Only keys nearer than `width`: |q - k| < width. With Causal, a token sees itself and the
    width - 1 before it.
    """

    width: int

    def __post_init__(self) -> None:
        check_positive("Window", "width", self.width)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return (q - k < self.width) & (k - q < self.width)

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first - self.width + 1, last + self.width


@dataclass(frozen=True, eq=False)
class Blockwise(Mask):
    """Positions fall into blocks of `size`, and a token sees its own block only."""

    size: int

    def __post_init__(self) -> None:
        check_positive("Block", "size", self.size)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return q // self.size == k // self.size

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        return first // self.size * self.size, (last // self.size + 1) * self.size


@dataclass(frozen=True, eq=False)
class Strided(Mask):
    """The Sparse Transformer's strided pattern: the last `stride` tokens, and every stride-th one
    before them.
    """

    stride: int

    def __post_init__(self) -> None:
        check_positive("Strided", "stride", self.stride)

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() < self.stride) | ((q - k) % self.stride == 0)


@dataclass(frozen=True, eq=False)
class Fixed(Mask):
    """The Sparse Transformer's fixed pattern: one's own block of `stride`, and the last `summary`
    of every block.
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
        return (q // self.stride == k // self.stride) | (
            k % self.stride >= self.stride - self.summary
        )


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are real words: `padding_mask` (B, S) is True for a word and False for padding."""

    padding_mask: Bool[Tensor, "B S"]

    def __post_init__(self) -> None:
        check_matrix("Padding", "padding_mask", self.padding_mask)
        if self.padding_mask.dtype != torch.bool:
            raise TypeError(
                f"Padding: keep must be bool (True for a real word), not {self.padding_mask.dtype}"
            )

    @classmethod
    def of_lengths(cls, lengths: Int[Tensor, "B"], S: int) -> Padding:
        return cls(torch.arange(S, device=lengths.device) < lengths.unsqueeze(1))

    @property
    def rows(self) -> int:
        return self.padding_mask.shape[0]

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return self.padding_mask[b, k]

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_shape("Padding", "padding_mask", self.padding_mask, (B, S))


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """Texts packed into one row do not see each other: `ids` (B, S) numbers the text that each
    position is from.

    Texts lie one after another, so where the number changes a new text begins, also if the number
    was there before.
    """

    ids: Int[Tensor, "B S"]
    text: Int[Tensor, "B S"] = field(init=False, repr=False)
    """The texts of a row numbered from 0."""
    ends: tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]] = field(init=False, repr=False)
    """For every position, where its text begins and ends."""

    def __post_init__(self) -> None:
        check_matrix("Document", "ids", self.ids)
        check_whole("Document", "ids", self.ids)
        begins = (self.ids[:, 1:] != self.ids[:, :-1]).cumsum(1)  # (B, S - 1)
        text = torch.nn.functional.pad(begins, (1, 0))[
            :, : self.ids.shape[1]
        ].contiguous()  # (B, S)
        object.__setattr__(self, "text", text)
        object.__setattr__(
            self,
            "ends",
            (torch.searchsorted(text, text), torch.searchsorted(text, text, right=True)),
        )

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    def allows(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return self.text[b, q] == self.text[b, k]

    def reach(self, first: Any, last: Any) -> tuple[Any, Any]:
        low, high = self.ends[0][:, first], self.ends[1][:, last]
        return (low, high) if isinstance(first, Tensor) else (int(low.min()), int(high.max()))

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_shape("Document", "ids", self.ids, (B, S))
        if T > S:
            raise ValueError(
                f"Document: {T} queries are more than the {S} keys, and some would be in no text"
            )


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Everyone sees the row's first `length` tokens, a number or (B,); beyond them, no looking
    ahead.
    """

    length: int | Int[Tensor, "B"]

    def __post_init__(self) -> None:
        if isinstance(self.length, Tensor):
            check_whole("Prefix", "length", self.length)
            if self.length.dim() != 1:
                raise ValueError(
                    f"Prefix: length must have shape (B,), not {tuple(self.length.shape)}"
                )

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
    """A mask given as its matrix, True where looking is allowed: (T, S), (B, T, S) or (B, H, T, S)."""

    allowed: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise TypeError(
                f"mask must be bool, True where looking is allowed, not {self.allowed.dtype}; "
                "numbers to be added to the scores go into bias"
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
        b = b if self.rows > 1 else 0
        h = h if self.heads > 1 else 0
        return self.allowed[b, h, q - offset, k]

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_fits_scores("mask", self.allowed, (B, H, T, S), may_be_one="BH")


def all_of(*masks: Mask | None) -> Mask | None:
    """The masks that are there, combined; None when there is none."""
    there = [mask for mask in masks if mask is not None]
    return reduce(lambda a, b: a & b, there) if there else None


def as_mask(mask: Mask | Tensor) -> Mask:
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Explicit(mask)

    raise TypeError(f"mask must be a Mask or a bool tensor, not {type(mask).__name__}")
