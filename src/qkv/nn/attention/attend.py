"""Attention, the one equation: attend(Q, K, V) = softmax(score(Q, K)) V.

`eager` is its definition. The kernels in kernels/ are substitutes that give the same numbers, and
`choose` takes the first in their table that supports a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.arguments import check_arguments, with_heads, without_heads
from qkv.nn.attention.bias import Bias, as_bias
from qkv.nn.attention.kernels.table import KERNELS, AttentionCall
from qkv.nn.attention.mask import Mask, as_mask
from qkv.nn.attention.score import General, Score, dot, scaled_dot
from qkv.nn.attention.softmax import NORMALISE, Normalise

OnValue = Callable[[Tensor], Tensor]
"""Takes the scores or the weights, and returns what to use in their place."""


def eager(
    query: Float[Tensor, "B H T Q"],
    key: Float[Tensor, "B K S P"],
    value: Float[Tensor, "B K S X"],
    mask: Mask | None,
    score: Score,
    bias: Bias | None,
    dropout: float = 0.0,
    on_scores: OnValue | None = None,
    on_weights: OnValue | None = None,
    normalise: Normalise = "softmax",
) -> tuple[Float[Tensor, "B H T X"], Float[Tensor, "B H T S"]]:
    """The definition of attention, line by line; returns the output and the weights."""
    T = query.shape[-2]
    S = key.shape[-2]

    # Grouped-query attention: each key head serves a group of query heads.
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, dim=1)  # (B, H, S, P)
    value = value.repeat_interleave(group, dim=1)  # (B, H, S, X)

    # How well does each query match each key?
    scores = score(query, key)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias.materialise(T, S, query)

    if mask is not None:
        hidden = ~mask.materialise(T, S, query.device)
        if bias is not None or score in (dot, scaled_dot):
            scores.masked_fill_(hidden, -math.inf)  # the tensor is new, and ours to change
        else:
            scores = scores.masked_fill(hidden, -math.inf)

    if on_scores is not None:
        scores = on_scores(scores)

    # The weights of a query sum to 1, unless they are not normalised.
    weights = NORMALISE[normalise](scores)  # (B, H, T, S)
    if on_weights is not None:
        weights = on_weights(weights)

    # The output is the weighted sum of the values.
    dropped = F.dropout(weights, dropout) if dropout else weights
    return dropped @ value, weights  # (B, H, T, X)


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
    on_scores: OnValue | None = None,
    on_weights: OnValue | None = None,
    kernel: str | None = None,
    normalise: Normalise = "softmax",
) -> tuple[Float[Tensor, "*bq T X"], Float[Tensor, "*bq T S"] | None]:
    """Look up `value` by the similarity of `query` and `key`: softmax(score(Q, K)) V.

    Args:
        query: (B, H, T, D), or (B, T, D) or (T, D) without heads.
        key: (B, K, S, D), where K divides H: fewer key heads are shared by groups of query heads.
        value: (B, K, S, X).
        mask: Which keys each query may attend to; a query without any gets zeros.
        score: The similarity of a query and a key.
        bias: Numbers added to the scores.
        need_weights: Return the weights, too.
        dropout: Probability to drop a weight.
        on_scores: Called with the scores; returns what to use in their place.
        on_weights: Called with the weights; returns what to use in their place.
        kernel: The kernel to use, even where it is not worth it; None chooses the first in the
            table that supports the call.
        normalise: How scores become weights: by softmax; "proportional" to the scores, of which
            negative ones count as 0; or "none", the scores themselves. Only eager has the latter.

    Returns:
        The output (B, H, T, X), and the weights (B, H, T, S), or None without `need_weights`.

    Raises:
        TypeError: If the tensors have different or integer dtypes.
        ValueError: If the shapes, mask or bias do not fit, or the kernel cannot compute the call.

    Example:
        >>> import torch
        >>> from qkv.nn.attention import Causal
        >>> output, weights = attend(*torch.ones(3, 2, 4), mask=Causal(), need_weights=True)
        >>> weights
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    mask = None if mask is None else as_mask(mask)
    bias = None if bias is None else as_bias(bias)
    q, k, v = with_heads(query), with_heads(key), with_heads(value)
    check_arguments(q, k, v, mask, bias, score)
    check_choices(kernel, normalise)

    needs_scores = need_weights or on_scores is not None or on_weights is not None
    needs_scores = needs_scores or normalise != "softmax"
    if type(score) is General and not needs_scores:
        # <A q, B k> is the dot product of projected queries and keys, which every kernel knows.
        q = score.A(q)
        k = score.B(k)
        score = dot

    scale = 1 / math.sqrt(q.shape[-1]) if score is scaled_dot else 1.0
    call = AttentionCall(q, k, v, mask, bias, scale, dropout)
    kernel = kernel or choose(call, score, needs_scores)
    if kernel == "eager":
        output, weights = eager(
            q, k, v, mask, score, bias, dropout, on_scores, on_weights, normalise
        )
        all_weights = without_heads(weights, query.dim()) if need_weights else None
        return without_heads(output, query.dim()), all_weights

    if needs_scores or score not in (dot, scaled_dot):
        raise ValueError(
            f"kernel {kernel} returns no weights and supports only softmax of dot and scaled_dot: "
            "use eager"
        )

    return without_heads(KERNELS[kernel].run(call), query.dim()), None


def check_choices(kernel: str | None, normalise: str) -> None:
    if kernel is not None and kernel != "eager" and kernel not in KERNELS:
        raise ValueError(f"kernel: expected one of eager, {', '.join(KERNELS)}, not {kernel!r}")
    if normalise not in NORMALISE:
        raise ValueError(f"normalise: expected {', '.join(NORMALISE)}, not {normalise!r}")


def choose(call: AttentionCall, score: Score, needs_scores: bool) -> str:
    """The name of the first kernel in the table that supports the call."""
    empty = call.query.shape[-2] == 0 or call.key.shape[-2] == 0
    if needs_scores or score not in (dot, scaled_dot) or empty:
        return "eager"

    for name, kernel in KERNELS.items():
        if kernel.supports(call):
            return name

    return "eager"
