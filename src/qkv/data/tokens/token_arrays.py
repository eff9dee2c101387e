"""Token arrays: long runs of ids, in memory or memory-mapped, read window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Int

from qkv.data.batches.order import random_generator


@dataclass(frozen=True, eq=False)
class Tokens:
    """Texts one after another, each with its end token if the tokenizer has one."""

    shards: Sequence[np.ndarray]
    """The ids in order, split anywhere."""
    all_ends: Int[np.ndarray, "texts"]
    """The positions just after the last token of each text, counted from the first shard."""
    fingerprint: str
    """Identifies source and tokenizer; the parts of a split have the same."""
    begin: int = 0
    """The first position of this part in the shards."""
    end: int | None = None
    """The position after its last; None for the end of the shards."""
    borders: Int[np.ndarray, "borders"] = field(init=False, repr=False)
    """The start of each shard, and the end of the last one."""

    def __post_init__(self) -> None:
        borders = np.cumsum([0, *map(len, self.shards)], dtype=np.int64)
        object.__setattr__(self, "borders", borders)
        if self.end is None:
            object.__setattr__(self, "end", int(borders[-1]))

    def __len__(self) -> int:
        assert self.end is not None
        return self.end - self.begin

    def read(self, start: int, stop: int) -> Int[np.ndarray, "T"]:
        """The ids from start to stop - 1."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")

        ids = np.empty(stop - start, dtype=np.int64)
        position = self.begin + start
        end = self.begin + stop
        shard = int(np.searchsorted(self.borders, position, side="right")) - 1
        done = 0

        # Copy from one shard after another.
        while position < end:
            first = int(self.borders[shard])
            last = min(end, int(self.borders[shard + 1]))
            count = last - position
            ids[done : done + count] = self.shards[shard][position - first : last - first]
            position = last
            done += count
            shard += 1

        return ids

    def read_spans(
        self, starts: Int[np.ndarray, "N"], lengths: Int[np.ndarray, "N"]
    ) -> Int[np.ndarray, "T"]:
        """The ids of several spans, one after another."""
        before = np.cumsum(lengths) - lengths  # ids of the spans before each
        positions = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"tokens {positions.min()} to {positions.max()} of {len(self)}")

        positions += self.begin
        if len(self.shards) == 1:
            return self.shards[0][positions].astype(np.int64)

        ids = np.empty(len(positions), dtype=np.int64)
        numbers = np.searchsorted(self.borders, positions, side="right") - 1
        for shard in np.unique(numbers).tolist():
            here = numbers == shard
            ids[here] = self.shards[shard][positions[here] - self.borders[shard]]

        return ids

    @cached_property
    def ends(self) -> Int[np.ndarray, "texts"]:
        """The positions just after the last token of each text that ends in this part."""
        first, last = np.searchsorted(
            self.all_ends, (self.begin, self.begin + len(self)), side="right"
        )
        within = self.all_ends[first:last]
        if not self.begin:
            return within

        return within - self.begin

    def split(self, held_out: float) -> tuple[Tokens, Tokens]:
        """Training tokens, and the last fraction `held_out` of the tokens for validation."""
        end = self.begin + len(self)
        middle = end - count_held_out(held_out, len(self), "tokens")
        return self.within(self.begin, middle), self.within(middle, end)

    def within(self, begin: int, end: int) -> Tokens:
        """The part between two positions of the shards."""
        return Tokens(self.shards, self.all_ends, self.fingerprint, begin, end)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Source texts and their target texts, without start or end tokens."""

    sources: Tokens
    targets: Tokens
    chosen: Int[np.ndarray, "pairs"] | None = None
    """The numbers of the pairs; None for all."""

    def __post_init__(self) -> None:
        if len(self.sources.ends) != len(self.targets.ends):
            counts = f"{len(self.sources.ends)} sources and {len(self.targets.ends)} targets"
            raise ValueError(f"pairs: expected as many sources as targets, not {counts}")

    @property
    def fingerprint(self) -> str:
        return self.sources.fingerprint

    def __len__(self) -> int:
        if self.chosen is None:
            return len(self.sources.ends)

        return len(self.chosen)

    def source(self, i: int) -> Int[np.ndarray, "S"]:
        """The ids of a source."""
        return self.text(self.sources, i)

    def target(self, i: int) -> Int[np.ndarray, "T"]:
        """The ids of a target."""
        return self.text(self.targets, i)

    def text(self, side: Tokens, i: int) -> Int[np.ndarray, "N"]:
        number = i
        if self.chosen is not None:
            number = int(self.chosen[i])

        start = int(side.ends[number - 1]) if number else 0
        return side.read(start, int(side.ends[number]))

    def texts(
        self, side: Tokens, numbers: Int[np.ndarray, "N"]
    ) -> tuple[Int[np.ndarray, "T"], Int[np.ndarray, "N"]]:
        """The ids of several texts of a side, one after another, and the length of each."""
        if self.chosen is not None:
            numbers = self.chosen[numbers]

        stops = side.ends[numbers]
        starts = np.where(numbers > 0, side.ends[numbers - 1], 0)
        lengths = stops - starts

        return side.read_spans(starts, lengths), lengths

    @cached_property
    def source_lengths(self) -> Int[np.ndarray, "pairs"]:
        return self.lengths(self.sources)

    @cached_property
    def target_lengths(self) -> Int[np.ndarray, "pairs"]:
        return self.lengths(self.targets)

    def lengths(self, side: Tokens) -> Int[np.ndarray, "pairs"]:
        lengths = np.diff(side.ends, prepend=0)
        if self.chosen is None:
            return lengths

        return lengths[self.chosen]

    def split(self, held_out: float) -> tuple[Pairs, Pairs]:
        """Training pairs, and a random fraction for validation that is always the same."""
        count = count_held_out(held_out, len(self), "pairs")
        shuffled = random_generator("held out", 0, 0).permutation(len(self))

        return self.part(np.sort(shuffled[count:])), self.part(np.sort(shuffled[:count]))

    def part(self, numbers: Int[np.ndarray, "n"]) -> Pairs:
        """The pairs with these numbers."""
        if self.chosen is not None:
            numbers = self.chosen[numbers]

        return Pairs(self.sources, self.targets, numbers)


def count_held_out(held_out: float, count: int, of: str) -> int:
    """The number of items for validation; raises if either part would be empty."""
    if not 0 < held_out < 1:
        raise ValueError(f"held_out: expected a fraction between 0 and 1, not {held_out}")

    held = round(count * held_out)
    if not 0 < held < count:
        raise ValueError(
            f"held_out: {held_out} of {count} {of} leaves {held} to validate on; give more data"
        )

    return held
