"""What comes when: a pure function of (seed, step). Any step can be the first, so resuming replays
nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

STREAMS = {
    "windows": 0,
    "pairs": 1,
    "target_positions": 2,
    "ordered places": 3,
    "held out": 4,
    "examples": 5,
    "some examples": 6,
    "conversations": 7,
}


def draws(stream: str, seed: int, number: int) -> np.random.Generator:
    """The random numbers of one epoch or one row, independent of every other epoch, row and stream."""
    return np.random.default_rng((STREAMS[stream], seed, number))


class TokenWindow(NamedTuple):
    """One row of tokens."""

    begin: int
    """The position of its first token in the text."""
    seen: int
    """So many of its first positions belong to the window before it too; only that one asks for
    their targets.
    """


class TokenWindows:
    """The windows of `size` tokens that are the rows of each step, cut from one long run of tokens.

    Every epoch covers all of it, in an order and at an offset of its own, so that a window rarely
    shows the same tokens twice. The first and the last window of an epoch are moved inwards to be
    full, and overlap their neighbours; what two windows share is asked once (`seen`). A text
    shorter than one window is one window, and the rest of that row is padding. `ahead` more tokens
    must follow a window (the causal target of its last token).
    """

    version = 2
    """Of the order; 1 left out up to 2 * size - 1 tokens at the ends of each epoch."""

    def __init__(self, length: int, size: int, rows: int, seed: int, ahead: int = 0) -> None:
        check_seed(seed)
        for name, value in (("context", size), ("rows", rows)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, not {value}")

        if length < 1 + ahead:
            raise ValueError(f"tokens: expected {1 + ahead} or more, not {length}")

        self.size, self.rows, self.seed = size, rows, seed
        self.length = length - ahead  # positions that are read
        self.count, self.offsets = tiling(self.length, size)
        self.epoch = lru_cache(maxsize=2)(self.draw_epoch)  # a batch may lie across two

    def draw_epoch(self, epoch: int) -> Int[np.ndarray, "count 2"]:
        """The windows of the epoch (begin, seen), in its order."""
        random = draws("windows", self.seed, epoch)
        offset = self.offsets[int(random.integers(len(self.offsets)))]
        begins = np.maximum(offset + np.arange(-1, self.count - 1, dtype=np.int64) * self.size, 0)
        begins = np.minimum(begins, max(0, self.length - self.size))
        seen = np.append(0, np.maximum(begins[:-1] + self.size - begins[1:], 0))

        return np.stack([begins, seen], axis=1)[random.permutation(self.count)]

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.count // self.rows)

    def numbers(self, step: int) -> range:
        """The rows of a step, counted through all steps."""
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        return range(step * self.rows, (step + 1) * self.rows)

    def at(self, step: int) -> list[TokenWindow]:
        """The rows of the step."""
        rows = (
            self.epoch(number // self.count)[number % self.count] for number in self.numbers(step)
        )
        return [TokenWindow(int(begin), int(seen)) for begin, seen in rows]


def tiling(length: int, size: int) -> tuple[int, range]:
    """How many windows an epoch has, and where the second one may begin so that there are always as
    many.

    The second window begins at an offset of 1 to size, and those after it side by side. With
    `least` windows there are `spare` + 1 such offsets; with one window more, size - 1 - spare. What
    has more of them is taken.
    """
    least = -(-length // size)
    spare = least * size - length
    if least == 1:
        return 1, range(size, size + 1)
    if 2 * spare + 2 >= size:
        return least, range(size - spare, size + 1)

    return least + 1, range(1, size - spare)


def check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")
