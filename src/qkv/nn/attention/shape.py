"""Shapes that attention accepts, and a clear sentence for those it does not."""

from __future__ import annotations

import torch
from torch import Tensor


def four_dimensions(matrix: Tensor) -> Tensor:
    """(T, S) or (B, T, S) as (B, H, T, S), with 1 for what is missing."""
    if matrix.dim() == 2:
        return matrix[None, None]

    return matrix.unsqueeze(1) if matrix.dim() == 3 else matrix


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
    """The value's shape is that of the scores, or 1 where it may be."""
    for letter, size, given in zip("BHTS", scores, value.shape, strict=True):
        if given != size and not (given == 1 and letter in may_be_one):
            raise ValueError(
                f"{name} of shape {tuple(value.shape)} does not fit scores (B, H, T, S) = {scores}: "
                f"{letter} is {given}, expected {size}" + (" or 1" if letter in may_be_one else "")
            )
