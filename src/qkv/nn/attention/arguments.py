"""The arguments of attend: missing heads are added, and mistakes get a clear error."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Mask
from qkv.nn.attention.score import Score, dot, scaled_dot
from qkv.nn.attention.shape import four_dimensions


def with_heads(x: Tensor) -> Float[Tensor, "B H L D"]:
    """(L, D) and (B, L, D) as (B, H, L, D)."""
    if not 2 <= x.dim() <= 4:
        raise ValueError(
            "expected (length, width), (B, length, width) or (B, heads, length, width), "
            f"not {tuple(x.shape)}"
        )

    return four_dimensions(x)


def without_heads(x: Tensor, dims: int) -> Tensor:
    """(B, H, L, D) with as many dimensions as the query had."""
    if dims == 4:
        return x
    if dims == 3:
        return x.squeeze(1)

    return x[0, 0]


def check_arguments(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None, score: Score
) -> None:
    """Raise if the arguments of `attend` do not go together."""
    if not callable(score):
        raise TypeError(
            "score: expected dot, scaled_dot, General(...), Additive(...) or a function, "
            f"not {score!r}"
        )

    check_dtypes(query, key, value)
    check_shapes(query, key, value, score)

    B, H, T, _ = query.shape
    S = key.shape[2]
    if mask is not None:
        mask.check(B, H, T, S)

    if bias is not None:
        bias.check(B, H, T, S)


def check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
    dtypes = (query.dtype, key.dtype, value.dtype)
    names = ", ".join(map(str, dtypes))
    if not all(dtype.is_floating_point for dtype in dtypes):
        raise TypeError(f"query, key and value must be floating-point numbers, not {names}")
    if len(set(dtypes)) > 1 and not torch.is_autocast_enabled(query.device.type):
        raise TypeError(f"query, key and value must have one dtype, not {names}")


def check_shapes(query: Tensor, key: Tensor, value: Tensor, score: Score) -> None:
    B, H, _, D = query.shape
    K = key.shape[1]
    if key.shape[0] != B or value.shape[0] != B:
        raise ValueError(
            f"batch: query has {B} rows, key {key.shape[0]}, value {value.shape[0]}; "
            "expected the same"
        )
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value: expected (kv_heads, length) = {tuple(key.shape[1:3])} as in key, "
            f"not {tuple(value.shape[1:3])}"
        )
    if K == 0 or H % K:
        raise ValueError(f"kv_heads: {K} key heads do not divide {H} query heads")
    if score in (dot, scaled_dot) and key.shape[-1] != D:
        raise ValueError(
            f"key width: expected {D} as in query, not {key.shape[-1]}; "
            "General and Additive scores may differ"
        )
