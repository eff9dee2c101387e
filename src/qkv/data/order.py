"""What comes when: a pure function of (seed, step). Any step can be the first, so resuming replays nothing."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int

STREAMS = {
    "windows": 0,
    "pairs": 1,
    "places": 2,
    "ordered places": 3,
    "held out": 4,
    "examples": 5,
    "some examples": 6,
    "conversations": 7,
}


def draws(stream: str, seed: int, number: int) -> np.random.Generator:
    """The random numbers of one epoch or one row, independent of every other epoch, row and stream."""
    return np.random.default_rng((STREAMS[stream], seed, number))


class Windows:
    """Where the rows of each step begin in a long run of tokens.

    An epoch cuts the run into windows of `size` tokens side by side and visits each once, in an order of its own. It
    begins at an offset of its own, so that a window rarely shows the same words twice. `ahead` more tokens must follow
    a window (the causal target of its last word).
    """

    def __init__(self, length: int, size: int, rows: int, seed: int, ahead: int = 0) -> None:
        check_seed(seed)
        if size < 1 or rows < 1:
            name, value = ("context", size) if size < 1 else ("rows", rows)
            raise ValueError(f"{name}: expected 1 or more, not {value}")
        if length < size + ahead:
            raise ValueError(
                f"context: one row takes {size + ahead} tokens and the text has {length}; "
                "lower the context or give more text"
            )
        self.size, self.rows, self.seed = size, rows, seed
        # As many as fit whatever the offset, so that all epochs have the same number.
        self.count = max(1, (length - ahead - size + 1) // size)
        self.offsets = min(size, length - ahead - self.count * size + 1)
        self.epoch = lru_cache(maxsize=2)(self.draw_epoch)  # a batch may lie across two

    def draw_epoch(self, epoch: int) -> Int[np.ndarray, "count"]:
        """The begins of the epoch's windows, in its order."""
        random = draws("windows", self.seed, epoch)
        offset = int(random.integers(self.offsets))
        return offset + random.permutation(self.count) * self.size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.count // self.rows)

    def numbers(self, step: int) -> range:
        """The rows of a step, counted through all steps."""
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")
        return range(step * self.rows, (step + 1) * self.rows)

    def begins(self, step: int) -> list[int]:
        """Where each row of the step begins."""
        return [int(self.epoch(number // self.count)[number % self.count]) for number in self.numbers(step)]


def check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")
