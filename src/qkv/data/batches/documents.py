"""Texts packed into a row: which text each token is of, and where in it."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int


def document_numbers(
    ends: Int[np.ndarray, "texts"], begin: int, length: int
) -> Int[np.ndarray, "T"]:
    """0 for the tokens of the row's first text, 1 for the next, ...; `ends` are just after each
    text's last token.
    """
    first, last = np.searchsorted(ends, (begin, begin + length), side="right")
    numbers = np.zeros(length + 1, dtype=np.int64)
    numbers[ends[first:last] - begin] = 1

    return np.cumsum(numbers[:length])


def positions_within(documents: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
    """0, 1, 2, ... in each text of each row."""
    place = np.arange(documents.shape[1])
    begins = np.diff(documents, axis=1, prepend=-1) != 0  # (B, T)
    return place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
