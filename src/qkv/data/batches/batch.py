"""Batch: token ids, targets, padding masks and token counts of one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IGNORE = -100
"""The target of a position without loss."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What the model reads and what it has to predict."""

    ids: Int[Tensor, "B T"]
    """The input ids; for a pair, the target shifted right by the start token."""
    targets: Int[Tensor, "B N"]
    """The ids to predict at each position (N = T), or at each of `target_positions` (N = P); IGNORE
    where there is no loss.
    """
    target_positions: Int[Tensor, "B P"] | None = None
    """The positions that have targets; None if all have."""
    padding_mask: Bool[Tensor, "B T"] | None = None
    """True for tokens, False for padding; None if there is no padding."""
    documents: Int[Tensor, "B T"] | None = None
    """The document of each position, where several are packed into a row and attend only to
    themselves."""
    positions: Int[Tensor, "B T"] | None = None
    """With documents: positions counted from the start of each document."""
    source: Int[Tensor, "B S"] | None = None
    """For a pair: the ids that the encoder reads."""
    source_padding_mask: Bool[Tensor, "B S"] | None = None
    segments: Int[Tensor, "B T"] | None = None
    """For a labelled pair: 0 for tokens of the first text, 1 for tokens of the second."""
    numbers: Float[Tensor, "B N"] | None = None
    """For regression: the values to predict, standardised; `targets` then only marks the rows."""
    group: int = 1
    """Number of sequences of equal length side by side in a row; `target_positions` count from the
    start of their sequence.
    """
    first_stream: int | None = None
    """Where rows continue those of the batch before: the number of the first row's stream."""
    segment: int = 0
    """With streams: the number of this segment in each of them, from 0 in every epoch."""

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    # Both counts are computed on the host before the batch moves: on a GPU they would force a sync.

    @cached_property
    def count(self) -> int:
        """The number of targets that count in the loss."""
        return int((self.targets != IGNORE).sum())

    @cached_property
    def tokens(self) -> int:
        """The number of tokens read, with the source and without padding."""
        tokens = count_tokens(self.ids, self.padding_mask)
        if self.source is not None:
            tokens += count_tokens(self.source, self.source_padding_mask)

        return tokens

    def split(self, parts: int) -> list[Batch]:
        """At most `parts` nearly equal parts in order, none of them empty."""
        if parts < 1:
            raise ValueError(f"parts: expected 1 or more, not {parts}")

        parts = min(parts, self.rows)
        if parts <= 1:
            return [self]

        borders = [self.rows * part // parts for part in range(parts + 1)]

        return [self.part(*ends) for ends in pairwise(borders)]

    def part(self, first: int, last: int) -> Batch:
        """Rows first to last - 1; pairs lose the padding that only other rows needed."""
        part = self.map(lambda tensor: tensor[first:last])
        if self.first_stream is not None:
            part = replace(part, first_stream=self.first_stream + first)

        if part.source is None:
            return part.trimmed(None, None)

        return part.trimmed(longest(part.padding_mask), longest(part.source_padding_mask))

    def trimmed(self, T: int | None, S: int | None) -> Batch:
        """The batch with its first T positions and its first S source positions; None for all."""
        return replace(
            self,
            ids=self.ids[:, :T],
            targets=self.targets[:, :T],
            padding_mask=unless_full(self.padding_mask, T),
            source=None if self.source is None else self.source[:, :S],
            source_padding_mask=unless_full(self.source_padding_mask, S),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device, with its counts; the host waits for what comes to it."""
        non_blocking = torch.device(device).type != "cpu"
        return self.with_counts(
            self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        )

    def pin(self) -> Batch:
        """The batch in pinned memory, for asynchronous copies to a GPU; unchanged without a GPU."""
        if not torch.cuda.is_available() or self.ids.is_cuda:
            return self

        return self.with_counts(self.map(Tensor.pin_memory))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to every tensor."""
        tensors = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = change(value)

        return replace(self, **tensors)  # type: ignore[arg-type]

    def with_counts(self, moved: Batch) -> Batch:
        """A copy of this batch with the counts already computed here."""
        moved.__dict__.update(count=self.count, tokens=self.tokens)
        return moved


def count_tokens(ids: Tensor, padding_mask: Tensor | None) -> int:
    return ids.numel() if padding_mask is None else int(padding_mask.sum())


def longest(padding_mask: Tensor | None) -> int | None:
    """The number of tokens in the longest row; None without padding."""
    return None if padding_mask is None else int(padding_mask.sum(1).max())


def unless_full(padding_mask: Tensor | None, length: int | None = None) -> Tensor | None:
    """The mask of the first positions; None if it masks nothing, since attention is faster then."""
    if padding_mask is None or bool(padding_mask[:, :length].all()):
        return None

    return padding_mask[:, :length]
