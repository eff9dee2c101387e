"""Padding: rows of ids of different lengths in one tensor, with the mask of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


def pad_rows(
    rows: Sequence[Sequence[int] | np.ndarray],
    padding: int = 0,
    *,
    left: bool = False,
    width: int | None = None,
    keep_mask: bool = False,
    device: torch.device | str | None = None,
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Rows padded to equal length, and their padding mask.

    Args:
        rows: Ids, or other whole numbers.
        padding: The number after the end of shorter rows; with `left`, before their beginning.
        left: Pad on the left, so that the last tokens of all rows are side by side.
        width: The length to pad to; by default that of the longest row.
        keep_mask: Return the mask even if it masks nothing; attention is faster without.
        device: The device of both tensors.

    Returns:
        The ids, and the mask with True for tokens; None without padding.
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int64)[:, None]  # (B, 1)
    if width is None:
        width = int(lengths.max())

    position = np.arange(width)
    is_token = position >= width - lengths if left else position < lengths  # (B, T)
    ids = np.full(is_token.shape, padding, dtype=np.int64)
    ids[is_token] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])

    mask = None
    if keep_mask or not is_token.all():
        mask = torch.from_numpy(is_token).to(device)

    return torch.from_numpy(ids).to(device), mask


def up_to(length: int, multiple: int) -> int:
    """The length rounded up to a multiple, so that batches have few shapes."""
    return -(-length // multiple) * multiple
