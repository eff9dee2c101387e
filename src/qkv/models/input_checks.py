"""Checks and positions that every model needs for the ids it is given."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def check_ids(ids: Tensor, vocabulary: int, before: int = 0, context: int | None = None) -> None:
    """A clear sentence instead of an index error deep inside."""
    if ids.dim() != 2:
        raise ValueError(f"ids: expected shape (B, T), not {tuple(ids.shape)}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids: expected whole numbers of dtype int64 or int32, not {ids.dtype}")
    if context is not None and before + ids.shape[1] > context:
        raise ValueError(
            f"context: {before + ids.shape[1]} positions are more than the model's {context}"
        )

    check_range("ids", ids, vocabulary, "vocabulary")


def check_rows(target: Tensor, rows: int) -> None:
    if target.shape[0] != rows:
        raise ValueError(f"target: expected {rows} rows as the source has, not {target.shape[0]}")


def check_range(name: str, numbers: Tensor, count: int, of: str) -> None:
    """Each is a row of a table of `count`."""
    # On another device the look would make the host wait.
    if numbers.device.type == "cpu" and numbers.numel() and not torch.compiler.is_compiling():
        low, high = torch.aminmax(numbers)
        if low < 0 or high >= count:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(f"{name}: expected 0 to {count - 1} ({of} {count}), found {wrong}")


def check_padding_mask(padding_mask: Tensor, shape: tuple[int, int]) -> None:
    if padding_mask.dtype != torch.bool:
        raise TypeError(
            f"padding_mask: expected bool, True for a word and False for padding, not {padding_mask.dtype}"
        )
    if tuple(padding_mask.shape) != shape:
        raise ValueError(
            f"padding_mask: expected shape {shape} for all positions, not {tuple(padding_mask.shape)}"
        )


def positions_of(
    ids: Int[Tensor, "B T"],
    padding_mask: Bool[Tensor, "B S"] | None,
    before: int = 0,
    given: Int[Tensor, "#B T"] | None = None,
    context: int | None = None,
) -> Int[Tensor, "#B T"]:
    """0, 1, 2, ... after what came before. Padding is not counted: a text has the same positions
    wherever it lies.
    """
    B, T = ids.shape
    if padding_mask is not None:
        check_padding_mask(padding_mask, (B, before + T))

    if given is not None:
        if given.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"positions: expected whole numbers of dtype int64 or int32, not {given.dtype}"
            )
        if tuple(given.shape) not in ((B, T), (1, T)):
            raise ValueError(
                f"positions: expected shape {(B, T)} as the ids, not {tuple(given.shape)}"
            )

        if context is not None:
            check_range("positions", given, context, "context")

        return given

    if padding_mask is None:
        return torch.arange(before, before + T, device=ids.device).unsqueeze(0)

    return (padding_mask.cumsum(1) - 1).clamp(min=0)[:, before:]


def padding_before_tokens(padding_mask: Bool[Tensor, "B S"]) -> bool:
    return bool((padding_mask[:, 1:] & ~padding_mask[:, :-1]).any())


def refuse_padding_before_tokens(padding_mask: Tensor | None) -> None:
    """For what counts from the row's first place, as the fixed pattern does: shifted, a text would
    be another text.
    """
    # On another device the look would make the host wait.
    if padding_mask is None or padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if padding_before_tokens(padding_mask):
        raise ValueError(
            "padding_mask: with sparse = fixed, padding must come after the words of a row; or use strided"
        )
