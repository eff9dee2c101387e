"""Prepared data: long runs of ids, in memory or mapped from files, that are read piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Int

from qkv.data.batches.order import draws


@dataclass(frozen=True, eq=False)
class Tokens:
    """Texts one after another, each with its end token when the tokenizer has one."""

    shards: Sequence[np.ndarray]
    """The ids, in order, cut anywhere."""
    all_ends: Int[np.ndarray, "texts"]
    """Just after the last token of each text, counted from the first shard's first token."""
    fingerprint: str
    """Tells the source and the tokenizer; the same for the parts of a split."""
    begin: int = 0
    """Where this part of the shards begins."""
    end: int | None = None
    borders: Int[np.ndarray, "borders"] = field(init=False, repr=False)
    """Where each shard begins, and the last one ends."""

    def __post_init__(self) -> None:
        borders = np.cumsum([0, *(len(shard) for shard in self.shards)], dtype=np.int64)
        object.__setattr__(self, "borders", borders)
        if self.end is None:
            object.__setattr__(self, "end", int(borders[-1]))

    def __len__(self) -> int:
        assert self.end is not None
        return self.end - self.begin

    def read(self, start: int, stop: int) -> Int[np.ndarray, "T"]:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")

        read = np.empty(stop - start, dtype=np.int64)
        begin, end = self.begin + start, self.begin + stop
        shard = int(np.searchsorted(self.borders, begin, side="right")) - 1

        while begin < end:
            first, last = int(self.borders[shard]), min(end, int(self.borders[shard + 1]))
            done = begin - self.begin - start
            read[done : done + last - begin] = self.shards[shard][begin - first : last - first]
            begin, shard = last, shard + 1

        return read

    @cached_property
    def ends(self) -> Int[np.ndarray, "texts"]:
        """Just after the last token of each text that ends here."""
        first, last = np.searchsorted(
            self.all_ends, (self.begin, self.begin + len(self)), side="right"
        )
        within = self.all_ends[first:last]
        return within - self.begin if self.begin else within

    def split(self, held_out: float) -> tuple[Tokens, Tokens]:
        """What to train on, and the last `held_out` (a fraction) of the tokens to validate on."""
        kept = len(self) - count_held_out(held_out, len(self), "tokens")
        middle = self.begin + kept
        return self.within(self.begin, middle), self.within(middle, self.begin + len(self))

    def within(self, begin: int, end: int) -> Tokens:
        return Tokens(self.shards, self.all_ends, self.fingerprint, begin, end)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Source texts and their target texts, without start or end tokens."""

    sources: Tokens
    targets: Tokens
    chosen: Int[np.ndarray, "pairs"] | None = None
    """Which pairs these are; all unless given."""

    def __post_init__(self) -> None:
        if len(self.sources.ends) != len(self.targets.ends):
            counts = f"{len(self.sources.ends)} sources and {len(self.targets.ends)} targets"
            raise ValueError(f"pairs: expected as many sources as targets, not {counts}")

    @property
    def fingerprint(self) -> str:
        return self.sources.fingerprint

    def __len__(self) -> int:
        return len(self.sources.ends) if self.chosen is None else len(self.chosen)

    def source(self, i: int) -> Int[np.ndarray, "S"]:
        return self.text(self.sources, i)

    def target(self, i: int) -> Int[np.ndarray, "T"]:
        return self.text(self.targets, i)

    def text(self, side: Tokens, i: int) -> Int[np.ndarray, "N"]:
        number = i if self.chosen is None else int(self.chosen[i])
        return side.read(int(side.ends[number - 1]) if number else 0, int(side.ends[number]))

    @cached_property
    def source_lengths(self) -> Int[np.ndarray, "pairs"]:
        return self.lengths(self.sources)

    @cached_property
    def target_lengths(self) -> Int[np.ndarray, "pairs"]:
        return self.lengths(self.targets)

    def lengths(self, side: Tokens) -> Int[np.ndarray, "pairs"]:
        lengths = np.diff(side.ends, prepend=0)
        return lengths if self.chosen is None else lengths[self.chosen]

    def split(self, held_out: float) -> tuple[Pairs, Pairs]:
        """What to train on, and a fraction to validate on, drawn at random but always the same."""
        count = count_held_out(held_out, len(self), "pairs")
        mixed = draws("held out", 0, 0).permutation(len(self))
        chosen = np.arange(len(self.sources.ends)) if self.chosen is None else self.chosen
        train, validation = np.sort(mixed[count:]), np.sort(mixed[:count])

        return Pairs(self.sources, self.targets, chosen[train]), Pairs(
            self.sources, self.targets, chosen[validation]
        )


def count_held_out(held_out: float, count: int, of: str) -> int:
    if not 0 < held_out < 1:
        raise ValueError(f"held_out: expected a fraction between 0 and 1, not {held_out}")

    held = round(count * held_out)
    if not 0 < held < count:
        raise ValueError(
            f"held_out: {held_out} of {count} {of} leaves {held} to validate on; give more data"
        )

    return held
