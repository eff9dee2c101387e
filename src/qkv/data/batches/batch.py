"""Batch: what the model reads and what it must say. It owns the shift, the masks and the counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IGNORE = -100
"""The target where nothing is asked."""


@dataclass(frozen=True, eq=False)
class Batch:
    ids: Int[Tensor, "B T"]
    """What the model reads; of a pair, the target's words after the start token."""
    targets: Int[Tensor, "B N"]
    """What it must say: at each position (N = T), or at each of `target_positions` (N = M); IGNORE
    where nothing is asked.
    """
    target_positions: Int[Tensor, "B P"] | None = None
    """Which positions are asked, when it is not all of them."""
    padding_mask: Bool[Tensor, "B T"] | None = None
    """False for padding; None when there is none."""
    documents: Int[Tensor, "B T"] | None = None
    """Numbers the texts packed into a row, when they may not see each other."""
    positions: Int[Tensor, "B T"] | None = None
    """With documents: 0, 1, 2, ... in each text."""
    source: Int[Tensor, "B S"] | None = None
    """Of a pair: what the encoder reads."""
    source_padding_mask: Bool[Tensor, "B S"] | None = None
    segments: Int[Tensor, "B T"] | None = None
    """Of a labelled pair: 0 for the first text's words, 1 for the second's."""
    numbers: Float[Tensor, "B N"] | None = None
    """Where the answer is a number: which, in units of the head's own; the targets then only say
    that one is asked.
    """
    group: int = 1
    """So many sequences stand side by side in a row, equally long; a place is counted from its
    sequence's begin.
    """

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    # Both counts are taken where the batch was made: on another device each would make the host
    # wait.

    @cached_property
    def count(self) -> int:
        """How many targets are asked."""
        return int((self.targets != IGNORE).sum())

    @cached_property
    def tokens(self) -> int:
        """How many words are read, padding left out and the source included."""
        read = self.ids.numel() if self.padding_mask is None else int(self.padding_mask.sum())
        if self.source is not None:
            read += (
                self.source.numel()
                if self.source_padding_mask is None
                else int(self.source_padding_mask.sum())
            )

        return read

    def split(self, parts: int) -> list[Batch]:
        """Nearly equal parts in order; one a row when there are more parts than rows, so that none
        is empty.
        """
        if parts < 1:
            raise ValueError(f"parts: expected 1 or more, not {parts}")

        parts = min(parts, self.rows)
        borders = [self.rows * part // parts for part in range(parts + 1)]

        return [self.part(*ends) for ends in pairwise(borders)] if parts > 1 else [self]

    def part(self, first: int, last: int) -> Batch:
        """Rows first to last - 1. Those of pairs leave behind the padding that only longer rows
        needed.
        """
        part = self.map(lambda tensor: tensor[first:last])
        T = S = None
        if part.source is not None:
            T, S = longest(part.padding_mask), longest(part.source_padding_mask)

        return Batch(
            ids=part.ids[:, :T],
            targets=part.targets[:, :T],
            target_positions=part.target_positions,
            padding_mask=unless_full(part.padding_mask, T),
            documents=part.documents,
            positions=part.positions,
            source=None if part.source is None else part.source[:, :S],
            source_padding_mask=unless_full(part.source_padding_mask, S),
            segments=part.segments,
            numbers=part.numbers,
            group=part.group,
        )

    def to(self, device: torch.device | str) -> Batch:
        return self.with_counts(self.map(lambda tensor: tensor.to(device, non_blocking=True)))

    def pin(self) -> Batch:
        """In memory that a GPU copies from while the host goes on; without one, as it is."""
        if not torch.cuda.is_available() or self.ids.is_cuda:
            return self

        return self.with_counts(self.map(Tensor.pin_memory))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: change(each) if isinstance(each, Tensor) else each
            for name, each in values.items()
        }
        return Batch(**changed)

    def with_counts(self, moved: Batch) -> Batch:
        moved.__dict__.update(count=self.count, tokens=self.tokens)
        return moved


def longest(padding_mask: Tensor | None) -> int | None:
    """Words in the longest row; None (all of it) without padding."""
    return None if padding_mask is None else int(padding_mask.sum(1).max())


def unless_full(padding_mask: Tensor | None, length: int | None = None) -> Tensor | None:
    """Padding that is none need not be masked, and attention without a mask is faster."""
    if padding_mask is None or bool(padding_mask[:, :length].all()):
        return None

    return padding_mask[:, :length]
