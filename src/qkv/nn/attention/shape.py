"""Shape checks of masks and biases."""

from __future__ import annotations

import torch
from torch import Tensor


def four_dimensions(matrix: Tensor) -> Tensor:
    """(T, S) or (B, T, S) as (B, H, T, S), with 1 for each missing dimension."""
    if matrix.dim() == 2:
        return matrix[None, None]
    if matrix.dim() == 3:
        return matrix.unsqueeze(1)

    return matrix


def check_positive(mask: str, field: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{mask}: {field} must be a whole number of 1 or more, not {value}")


def check_matrix(mask: str, field: str, value: Tensor) -> None:
    if value.dim() != 2:
        raise ValueError(f"{mask}: {field} must have shape (B, S), not {tuple(value.shape)}")


def check_whole(mask: str, field: str, value: Tensor) -> None:
    if value.is_floating_point() or value.dtype == torch.bool:
        raise TypeError(f"{mask}: {field} must be whole numbers, not {value.dtype}")


def check_shape(mask: str, field: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{mask}: {field} must have shape {shape}, not {tuple(value.shape)}")


def check_fits_scores(
    name: str, value: Tensor, scores: tuple[int, int, int, int], may_be_one: str
) -> None:
    """Raise unless each dimension is that of the scores, or 1 for a letter in `may_be_one`."""
    for letter, expected, size in zip("BHTS", scores, value.shape, strict=True):
        broadcasts = letter in may_be_one
        if size == expected or (size == 1 and broadcasts):
            continue

        allowed = f"{expected} or 1" if broadcasts else f"{expected}"
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} does not fit scores (B, H, T, S) = {scores}: "
            f"{letter} is {size}, expected {allowed}"
        )
