"""THE equation: attend(Q, K, V) = softmax(score(Q, K)) V. Every attention in the system ends here.

`eager` below is the definition. The other kernels are substitutes that give the same numbers,
chosen by what the call asks for: PyTorch's `fused` kernels; FlexAttention (`flex`) and `blocked`,
which skip what a sparse mask rules out; `single`, for one query a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.bias import Bias, as_bias
from qkv.nn.attention.kernels import block_sparse, decode, flex, sdpa
from qkv.nn.attention.mask import Mask, as_mask
from qkv.nn.attention.score import General, Score, dot, scaled_dot
from qkv.nn.attention.shape import four_dimensions
from qkv.nn.attention.softmax import softmax_or_zeros

Kernel = Literal["eager", "fused", "blocked", "flex", "single"]
KERNELS = get_args(Kernel)
Listener = Callable[[Tensor], Tensor]


def attend(
    query: Float[Tensor, "*bq T Q"],
    key: Float[Tensor, "*bk S P"],
    value: Float[Tensor, "*bv N X"],
    *,
    mask: Mask | Tensor | None = None,
    score: Score = scaled_dot,
    bias: Bias | Tensor | None = None,
    need_weights: bool = False,
    dropout: float = 0.0,
    on_scores: Listener | None = None,
    on_weights: Listener | None = None,
    kernel: Kernel | None = None,
) -> tuple[Float[Tensor, "*bq T X"], Float[Tensor, "*bq T S"] | None]:
    """Look up `value` by the similarity of `query` and `key`.

    query (B, H, T, D), key (B, K, S, D), value (B, K, S, X), where K divides H; or (B, T, D) or (T,
    D) without heads. `mask` says who may look at whom, and a query that may look nowhere gets
    zeros. `bias` is added to the scores. `need_weights` returns the weights too, else None.
    `on_scores` and `on_weights` look at or replace theirs. `kernel` forces a substitute; it must be
    able to do what is asked.
    """
    dims = query.dim()
    query, key, value = with_heads(query), with_heads(key), with_heads(value)
    mask = None if mask is None else as_mask(mask)
    bias = None if bias is None else as_bias(bias)
    check(query, key, value, mask, bias, score)

    wants_weights = need_weights or on_scores is not None or on_weights is not None
    if type(score) is General and not wants_weights:
        query, key, score = score.A(query), score.B(key), dot

    if kernel is not None and kernel not in KERNELS:
        raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}, not {kernel!r}")

    kernel = kernel or choose(query, key, value, mask, score, bias, dropout, wants_weights)
    weights = None
    if kernel == "eager":
        output, weights = eager(
            query, key, value, mask, score, bias, dropout, on_scores, on_weights
        )
    elif wants_weights or score not in (dot, scaled_dot):
        raise ValueError(
            f"kernel {kernel} has no weights and knows no score but dot and scaled_dot: use eager"
        )
    else:
        scale = 1 / math.sqrt(query.shape[-1]) if score is scaled_dot else 1.0
        if kernel == "fused":
            output = sdpa.attend(query, key, value, mask, bias, scale, dropout)
        elif kernel == "blocked":
            output = block_sparse.attend(query, key, value, mask, bias, scale, dropout)
        elif kernel == "single":
            output = decode.attend(query, key, value, mask, bias, scale, dropout)
        else:
            output = flex.attend(query, key, value, mask, bias, scale, dropout)

    return without_heads(output, dims), without_heads(
        weights, dims
    ) if need_weights and weights is not None else None


def eager(
    query: Float[Tensor, "B H T Q"],
    key: Float[Tensor, "B K S P"],
    value: Float[Tensor, "B K S X"],
    mask: Mask | None,
    score: Score,
    bias: Bias | None,
    dropout: float = 0.0,
    on_scores: Listener | None = None,
    on_weights: Listener | None = None,
) -> tuple[Float[Tensor, "B H T X"], Float[Tensor, "B H T S"]]:
    """The definition, line by line as on the board."""
    T, S = query.shape[-2], key.shape[-2]
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(
        group, dim=1
    )  # (B, H, S, P): each key head serves a group of query heads
    value = value.repeat_interleave(group, dim=1)  # (B, H, S, X)

    scores = score(query, key)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias.materialise(T, S, query)

    if mask is not None:
        ours = bias is not None or score in (dot, scaled_dot)  # a tensor that nobody else holds
        fill = scores.masked_fill_ if ours else scores.masked_fill
        scores = fill(~mask.materialise(T, S, query.device), -math.inf)

    if on_scores is not None:
        scores = on_scores(scores)

    weights = softmax_or_zeros(scores)  # (B, H, T, S)
    if on_weights is not None:
        weights = on_weights(weights)

    dropped = F.dropout(weights, dropout) if dropout else weights

    return dropped @ value, weights  # (B, H, T, X)


def choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    score: Score,
    bias: Bias | None,
    dropout: float,
    wants_weights: bool,
) -> Kernel:
    """The fastest kernel that can do what is asked."""
    T, S = query.shape[-2], key.shape[-2]
    if wants_weights or score not in (dot, scaled_dot) or T == 0 or S == 0:
        return "eager"
    if decode.supports(query, key, value, mask, bias, dropout):
        return "single"
    if flex.supports(mask, bias, dropout, query, S):
        return "flex"
    if mask is not None and block_sparse.supports(mask, T, S, query.device):
        return "blocked"

    return "fused"


def with_heads(x: Tensor) -> Float[Tensor, "B H L D"]:
    """(L, D) and (B, L, D) as (B, H, L, D)."""
    if not 2 <= x.dim() <= 4:
        raise ValueError(
            f"expected (length, width), (B, length, width) or (B, heads, length, width), not {tuple(x.shape)}"
        )

    return four_dimensions(x)


def without_heads(x: Tensor, dims: int) -> Tensor:
    return x if dims == 4 else x.squeeze(1) if dims == 3 else x[0, 0]


def check(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None, score: Score
) -> None:
    """One sentence for each way to call attention wrongly."""
    if not callable(score):
        raise TypeError(
            f"score: expected dot, scaled_dot, General(...), Additive(...) or a function, not {score!r}"
        )

    dtypes = {query.dtype, key.dtype, value.dtype}
    if not all(dtype.is_floating_point for dtype in dtypes):
        raise TypeError(
            f"query, key and value must be floating-point numbers, not {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if len(dtypes) > 1 and not torch.is_autocast_enabled(query.device.type):
        raise TypeError(
            f"query, key and value must have one dtype, not {query.dtype}, {key.dtype}, {value.dtype}"
        )

    B, H, T, D = query.shape
    K, S = key.shape[1:3]
    if key.shape[0] != B or value.shape[0] != B:
        raise ValueError(
            f"batch: query has {B} rows, key {key.shape[0]}, value {value.shape[0]}; expected the same"
        )
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value: expected (kv_heads, length) = {tuple(key.shape[1:3])} as in key, not {tuple(value.shape[1:3])}"
        )
    if K == 0 or H % K:
        raise ValueError(f"kv_heads: {K} key heads do not divide {H} query heads")
    if score in (dot, scaled_dot) and key.shape[-1] != D:
        raise ValueError(
            f"key width: expected {D} as in query, not {key.shape[-1]}; General and Additive scores may differ"
        )

    if mask is not None:
        mask.check(B, H, T, S)

    if bias is not None:
        bias.check(B, H, T, S)
