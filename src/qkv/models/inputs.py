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
    # On another device the look would make the host wait.
    if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
        low, high = torch.aminmax(ids)
        if low < 0 or high >= vocabulary:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(f"ids: expected 0 to {vocabulary - 1} (vocabulary {vocabulary}), found {wrong}")


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
