"""Packing: documents one after another in a row, their numbers and their own positions."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int

from qkv.data.batches.batch import Batch


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


def packed_batch(
    ids: np.ndarray,
    targets: np.ndarray,
    padding_mask: np.ndarray,
    documents: np.ndarray | None,
    target_positions: np.ndarray | None = None,
) -> Batch:
    """A batch from arrays; positions restart in each document, and a full mask is left out."""
    positions = None if documents is None else positions_within(documents)
    mask = None if padding_mask.all() else padding_mask

    return Batch(
        ids=torch.from_numpy(ids),
        targets=torch.from_numpy(targets),
        target_positions=as_tensor(target_positions),
        padding_mask=as_tensor(mask),
        documents=as_tensor(documents),
        positions=as_tensor(positions),
    )


def as_tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)
