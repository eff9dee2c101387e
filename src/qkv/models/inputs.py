"""Checks and positions that every model needs for the ids it is given."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def check_ids(ids: Tensor, vocabulary: int, before: int = 0, context: int | None = None) -> None:
    """A clear sentence instead of an index error deep inside."""
    if ids.dim() != 2:
        raise ValueError(f"ids: expected shape (B, T), not {tuple(ids.shape)}")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"ids: expected whole numbers, not {ids.dtype}")
    if context is not None and before + ids.shape[1] > context:
        raise ValueError(f"context: {before + ids.shape[1]} positions are more than the model's {context}")
    check_range("ids", ids, vocabulary, "vocabulary")


def check_range(name: str, numbers: Tensor, count: int, of: str) -> None:
    """Each is a row of a table of `count`."""
    # On another device the look would make the host wait.
    if numbers.device.type == "cpu" and numbers.numel() and not torch.compiler.is_compiling():
        low, high = torch.aminmax(numbers)
        if low < 0 or high >= count:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(f"{name}: expected 0 to {count - 1} ({of} {count}), found {wrong}")


def positions_of(ids: Int[Tensor, "B T"], keep: Bool[Tensor, "B S"] | None, before: int = 0) -> Int[Tensor, "#B T"]:
    """0, 1, 2, ... after what came before. Padding is not counted: a text has the same positions wherever it lies."""
    T = ids.shape[1]
    if keep is None:
        return torch.arange(before, before + T, device=ids.device).unsqueeze(0)
    if tuple(keep.shape) != (ids.shape[0], before + T):
        raise ValueError(
            f"keep: expected shape {(ids.shape[0], before + T)} for all positions, not {tuple(keep.shape)}"
        )
    return (keep.cumsum(1) - 1).clamp(min=0)[:, before:]
