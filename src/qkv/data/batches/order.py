"""The order of the data: which windows of tokens a training step reads.

It is a pure function of (seed, step), so a run can resume at any step without replaying others:

    step -> the numbers of its rows, counted through all steps
         -> for each row, its epoch and its index in the epoch
         -> the epoch's windows, shuffled by a generator seeded with (seed, epoch)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

STREAMS = {
    "windows": 0,
    "pairs": 1,
    "masked positions": 2,
    "validation masks": 3,
    "held out": 4,
    "examples": 5,
    "some examples": 6,
    "conversations": 7,
}
"""Independent streams of random numbers, one for each purpose."""


def random_generator(stream: str, seed: int, number: int) -> np.random.Generator:
    """The random generator of one epoch or row, independent of every other one and every stream."""
    return np.random.default_rng((STREAMS[stream], seed, number))


class TokenWindow(NamedTuple):
    """One row of tokens."""

    begin: int
    """The position of its first token in the data."""
    overlap: int
    """Number of first positions that the window before covers, too; they have no targets here."""


class TokenWindows:
    """Windows of `size` tokens, cut from one long array of tokens, as the rows of each step.

    Every epoch covers all tokens, with an order and an offset of its own, so that windows rarely
    repeat. The first and the last window of an epoch are moved inwards to be full and overlap their
    neighbours; targets in the overlap count once. Data shorter than one window are one window,
    padded. Every window is followed by `ahead` more tokens (1 for the causal target of its last
    token).
    """

    version = 2
    """Version of the order; 1 left out up to 2 * size - 1 tokens at the ends of each epoch."""

    def __init__(self, length: int, size: int, rows: int, seed: int, ahead: int = 0) -> None:
        check_seed(seed)
        for name, value in (("context", size), ("rows", rows)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, not {value}")

        if length < 1 + ahead:
            raise ValueError(f"tokens: expected {1 + ahead} or more, not {length}")

        self.size = size
        self.rows = rows
        self.seed = seed
        self.length = length - ahead
        """Positions that are read."""
        self.count, self.offsets = tiling(self.length, size)
        self.epoch = lru_cache(maxsize=2)(self.shuffle_epoch)  # a step may span two epochs

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.count // self.rows)

    def at(self, step: int) -> list[TokenWindow]:
        """The windows of a step."""
        windows = []
        for number in self.numbers(step):
            epoch, index = divmod(number, self.count)
            begin, overlap = self.epoch(epoch)[index].tolist()
            windows.append(TokenWindow(begin, overlap))

        return windows

    def numbers(self, step: int) -> range:
        """The numbers of a step's rows, counted through all steps."""
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        return range(step * self.rows, (step + 1) * self.rows)

    def shuffle_epoch(self, epoch: int) -> Int[np.ndarray, "count 2"]:
        """The windows of an epoch as (begin, overlap), in their random order."""
        random = random_generator("windows", self.seed, epoch)

        # Tile the tokens from a random offset; move the outer windows inwards.
        offset = self.offsets[int(random.integers(len(self.offsets)))]
        begins = offset + np.arange(-1, self.count - 1, dtype=np.int64) * self.size
        begins = np.maximum(begins, 0)
        begins = np.minimum(begins, max(0, self.length - self.size))

        # Count how many positions each window shares with the one before it.
        ends = begins + self.size
        overlaps = np.append(0, np.maximum(ends[:-1] - begins[1:], 0))

        return np.stack([begins, overlaps], axis=1)[random.permutation(self.count)]


def tiling(length: int, size: int) -> tuple[int, range]:
    """The number of windows in an epoch, and the possible offsets of the second window.

    The number is the same for all offsets. The second window begins at an offset of 1 to size, and
    those after it follow without a gap. `least` windows allow `spare` + 1 offsets; one more window
    allows size - 1 - spare. The variant with more offsets is used.
    """
    least = -(-length // size)
    spare = least * size - length
    if least == 1:
        return 1, range(size, size + 1)
    if 2 * spare + 2 >= size:
        return least, range(size - spare, size + 1)

    return least + 1, range(1, size - spare)


def epoch_and_index(step: int, steps_per_epoch: int) -> tuple[int, int]:
    """The epoch of a step, and its index in the epoch."""
    if step < 0:
        raise ValueError(f"step: expected 0 or more, not {step}")

    return divmod(step, steps_per_epoch)


def check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")
