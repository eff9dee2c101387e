"""Packing: documents one after another in a row, their numbers and their own positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int


def document_numbers(
    ends: Int[np.ndarray, "documents"], begin: int, length: int
) -> Int[np.ndarray, "T"]:
    """The document of each of `length` tokens from `begin`, counted from 0 in the row.

    `ends` are the positions just after the last token of each document.
    """
    first, last = np.searchsorted(ends, (begin, begin + length), side="right")
    starts = np.zeros(length + 1, dtype=np.int64)
    starts[ends[first:last] - begin] = 1

    return np.cumsum(starts[:length])


def positions_within(documents: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
    """Positions 0, 1, 2, ... in each document of each row."""
    position = np.arange(documents.shape[1])
    starts = np.diff(documents, axis=1, prepend=-1) != 0  # (B, T)
    return position - np.maximum.accumulate(np.where(starts, position, 0), axis=1)


def document_tensors(documents: Sequence[np.ndarray]) -> dict[str, Any]:
    """The documents of a batch's rows, and the positions in them; nothing without documents."""
    if not documents:
        return {}

    numbers = np.stack(documents)  # (B, T)
    return {
        "documents": torch.from_numpy(numbers),
        "positions": torch.from_numpy(positions_within(numbers)),
    }
