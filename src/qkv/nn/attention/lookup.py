"""From a hash table to attention, in five steps.

Each step looks up one or more queries (T, D) in a table of keys (S, D) and values (S, X) and
returns (T, X). Each has a gradient for the values; only from the fourth step on do queries and keys
have one, and only in the last does every key have it: that is why attention can be learned.
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
    """1. A hash table: the value whose key equals the query, and nothing (zeros) when there is
    none.
    """
    found = (query.unsqueeze(1) == key.unsqueeze(0)).all(-1)  # (T, S)
    first = found & (found.cumsum(1) == 1)
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
    """3. The mean of the l most similar."""
    return value[top(query, key, l, score)[1]].mean(1)  # (T, l, X) -> (T, X)


def weighted_mean_of_top(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    l: int,
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """4. The mean of the l most similar, the more similar the heavier: now queries and keys have a
    gradient.
    """
    scores, index = top(query, key, l, score)  # (T, l)
    return (scores.softmax(-1).unsqueeze(1) @ value[index]).squeeze(
        1
    )  # (T, 1, l) (T, l, X) -> (T, X)


def softmax(
    query: Float[Tensor, "T D"],
    key: Float[Tensor, "S D"],
    value: Float[Tensor, "S X"],
    score: Score = dot,
) -> Float[Tensor, "T X"]:
    """5. Attention: the weighted mean of all."""
    return attend(query, key, value, score=score)[0]


def top(query: Tensor, key: Tensor, l: int, score: Score) -> tuple[Float[Tensor, "T l"], Tensor]:
    if not 1 <= l <= key.shape[0]:
        raise ValueError(f"l must be between 1 and the {key.shape[0]} keys there are, not {l}")

    best = torch.topk(score(query, key), l, dim=-1)
    return best.values, best.indices
