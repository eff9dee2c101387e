"""From a hash table to attention in six steps.

Each step looks up queries (T, D) in a table of keys (S, D) and values (S, X) and returns (T, X).
The values have a gradient in every step. Queries and keys have one only from the fourth step on,
and only in the last does every key have one: that is why attention can be learned.

The weights of the fourth step are inner products, which may be negative and have any sum: the
result has no scale. From the fifth step on they are positive and sum to 1, so 1/l is not needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.attend import attend
from qkv.nn.attention.score import Score, dot


def exact(
    query: Float[Tensor, "T D"], key: Float[Tensor, "S D"], value: Float[Tensor, "S X"]
) -> Float[Tensor, "T X"]:
    """1. A hash table: the value of the first key that equals the query, or zeros."""
    equal = (query.unsqueeze(1) == key.unsqueeze(0)).all(-1)  # (T, S)
    first = equal & (equal.cumsum(1) == 1)
    return first.to(value.dtype) @ value


def nearest(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """2. The value whose key is most similar to the query."""
    return value[score(query, key).argmax(-1)]


def mean_of_top(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    l: int,
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """3. The mean of the l values with the most similar keys."""
    _, index = top(query, key, l, score)  # (T, l)
    return value[index].mean(1)  # (T, l, X) -> (T, X)


def inner_products_of_top(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    l: int,
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """4. Each times its inner product with the query, which gives queries and keys a gradient."""
    scores, index = top(query, key, l, score)  # (T, l)
    weighted = scores.unsqueeze(1) @ value[index]  # (T, 1, l) (T, l, X) -> (T, 1, X)
    return weighted.squeeze(1) / l


def weighted_mean_of_top(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    l: int,
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """5. Their mean weighted by the softmax of their scores: weights that sum to 1."""
    scores, index = top(query, key, l, score)  # (T, l)
    weights = scores.softmax(-1).unsqueeze(1)  # (T, 1, l)
    return (weights @ value[index]).squeeze(1)  # (T, 1, l) (T, l, X) -> (T, X)


def softmax(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """6. Attention: the weighted mean of all values."""
    output, _ = attend(query, key, value, score=score)
    return output


def top(query: Tensor, key: Tensor, l: int, score: Score) -> tuple[Float[Tensor, "T l"], Tensor]:
    """The l highest scores of each query, and the positions of their keys."""
    if not 1 <= l <= key.shape[0]:
        raise ValueError(f"l must be between 1 and the number of keys, {key.shape[0]}, not {l}")

    best = torch.topk(score(query, key), l, dim=-1)
    return best.values, best.indices
