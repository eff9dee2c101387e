"""Checks of token ids, padding masks and positions, shared by all models."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.stack_config import StackConfig

FEW = 64  # as many indices are compared in Python in less time than by calls of PyTorch


def checked_positions(
    ids: Int[Tensor, "B T"],
    config: Any,
    padding_mask: Bool[Tensor, "B S"] | None,
    positions: Int[Tensor, "#B T"] | None = None,
    state: Cache = NO_STATE,
    *,
    vocabulary: int | None = None,
) -> Int[Tensor, "#B T"]:
    """Check all that describes the tokens of a Transformer's input; return their positions."""
    context = learned_context(config)
    # A packed row holds several sequences, each within the context.
    row_context = None if state.packed else context
    check_ids(ids, vocabulary or config.vocabulary, state.length, row_context)
    check_sparse_padding(config, padding_mask)

    return positions_of(ids, padding_mask, state.length, positions, context)


def check_ids(ids: Tensor, vocabulary: int, past: int = 0, context: int | None = None) -> None:
    """Raise if the ids cannot be looked up, instead of an index error deep inside the model.

    `past` counts the positions before these ids, and `context` limits both together.
    """
    if ids.dim() != 2:
        raise ValueError(f"ids: expected shape (B, T), not {tuple(ids.shape)}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids: expected whole numbers of dtype int64 or int32, not {ids.dtype}")
    if context is not None and past + ids.shape[1] > context:
        raise ValueError(
            f"context: {past + ids.shape[1]} positions are more than the model's {context}"
        )

    check_range("ids", ids, vocabulary, "vocabulary")


def check_source_rows(target: Tensor, rows: int | None) -> None:
    """Raise unless the target has as many rows as the source, if that has a row for each."""
    if rows is not None and target.shape[0] != rows:
        raise ValueError(f"target: expected {rows} rows as the source has, not {target.shape[0]}")


def check_range(name: str, indices: Tensor, count: int, size_name: str) -> None:
    """Raise if an index is outside a table of `count` rows; `size_name` is the field with count.

    Only on the CPU: reading the values of a GPU tensor would force a device sync.
    """
    if indices.device.type != "cpu" or not indices.numel() or torch.compiler.is_compiling():
        return

    if indices.numel() <= FEW:
        values = indices.flatten().tolist()
        low = min(values)
        high = max(values)
    else:
        low, high = map(int, torch.aminmax(indices))

    wrong = None
    if low < 0:
        wrong = low
    elif high >= count:
        wrong = high

    if wrong is not None:
        raise ValueError(f"{name}: expected 0 to {count - 1} ({size_name} {count}), found {wrong}")


def check_padding_mask(padding_mask: Tensor, shape: tuple[int, int]) -> None:
    if padding_mask.dtype != torch.bool:
        raise TypeError(
            "padding_mask: expected bool, True for a token and False for padding, "
            f"not {padding_mask.dtype}"
        )
    if tuple(padding_mask.shape) != shape:
        raise ValueError(
            f"padding_mask: expected shape {shape} for all positions, "
            f"not {tuple(padding_mask.shape)}"
        )


def positions_of(
    ids: Int[Tensor, "B T"],
    padding_mask: Bool[Tensor, "B S"] | None,
    past: int = 0,
    positions: Int[Tensor, "#B T"] | None = None,
    context: int | None = None,
) -> Int[Tensor, "#B T"]:
    """Return the checked `positions`, or else past, past + 1, ... for every row.

    Padding is not counted, so a sequence has the same positions wherever it lies in a row.
    """
    B, T = ids.shape
    if padding_mask is not None:
        check_padding_mask(padding_mask, (B, past + T))

    if positions is not None:
        check_positions(positions, (B, T), context)
        return positions

    if padding_mask is None:
        return torch.arange(past, past + T, device=ids.device).unsqueeze(0)

    return (padding_mask.cumsum(1) - 1).clamp(min=0)[:, past:]


def check_positions(positions: Tensor, shape: tuple[int, int], context: int | None) -> None:
    if positions.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"positions: expected whole numbers of dtype int64 or int32, not {positions.dtype}"
        )
    if tuple(positions.shape) not in (shape, (1, shape[1])):
        raise ValueError(
            f"positions: expected shape {shape} as the ids, not {tuple(positions.shape)}"
        )

    if context is not None:
        check_range("positions", positions, context, "context")


def learned_context(config: Any) -> int | None:
    """Return the longest sequence if positions are learned; other models have no limit."""
    if getattr(config, "position", None) == "learned":
        return int(config.context)

    return None


def padding_before_tokens(padding_mask: Bool[Tensor, "B S"]) -> bool:
    """Return whether a token follows padding in any row."""
    return bool((padding_mask[:, 1:] & ~padding_mask[:, :-1]).any())


def check_sparse_padding(config: StackConfig, padding_mask: Tensor | None) -> None:
    """Raise for left padding with sparse = fixed, whose pattern counts from the row's start.

    Only on the CPU: reading the values of a GPU tensor would force a device sync.
    """
    if config.sparse != "fixed" or padding_mask is None:
        return
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return

    if padding_before_tokens(padding_mask):
        raise ValueError(
            "padding_mask: with sparse = fixed, padding must come after the tokens of a row; "
            "or use strided"
        )
