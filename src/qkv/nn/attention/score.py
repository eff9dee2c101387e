"""Similarity of a query and a key: the one choice inside attention.

A score takes queries (..., T, D) and keys (..., S, D) and says how alike each pair is: (..., T, S).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]


def dot(query: Float[Tensor, "*q T D"], key: Float[Tensor, "*k S D"]) -> Float[Tensor, "*s T S"]:
    """<q, k>"""
    return query @ key.transpose(-2, -1)


def scaled_dot(
    query: Float[Tensor, "*q T D"], key: Float[Tensor, "*k S D"]
) -> Float[Tensor, "*s T S"]:
    """<q, k> / sqrt(D): the variance of a sum of D products is D, and softmax saturates on large
    numbers.
    """
    return dot(query / math.sqrt(query.shape[-1]), key)


class General(nn.Module):
    """<A q, B k> with learned A and B: queries and keys of different widths meet in `width`
    dimensions.
    """

    def __init__(
        self, query_width: int, key_width: int | None = None, width: int | None = None
    ) -> None:
        super().__init__()
        width = width or query_width
        self.A = nn.Linear(query_width, width, bias=False)
        self.B = nn.Linear(key_width or query_width, width, bias=False)

    def forward(
        self, query: Float[Tensor, "*q T Q"], key: Float[Tensor, "*k S P"]
    ) -> Float[Tensor, "*s T S"]:
        return dot(self.A(query), self.B(key))


class Additive(nn.Module):
    """v . tanh(W [q; k]): one hidden layer looks at both (Bahdanau et al. 2015).

    W [q; k] is W_q q + W_k k, so a decoder that asks many times projects its keys once.
    """

    def __init__(
        self, query_width: int, key_width: int | None = None, width: int | None = None
    ) -> None:
        super().__init__()
        width = width or query_width
        self.W_q = nn.Linear(query_width, width, bias=False)
        self.W_k = nn.Linear(key_width or query_width, width, bias=False)
        self.v = nn.Linear(width, 1, bias=False)

    def forward(
        self, query: Float[Tensor, "*q T Q"], key: Float[Tensor, "*k S P"]
    ) -> Float[Tensor, "*s T S"]:
        return self.with_projected_key(query, self.W_k(key))

    def with_projected_key(self, query: Tensor, projected: Tensor) -> Tensor:
        hidden = torch.tanh(
            self.W_q(query).unsqueeze(-2) + projected.unsqueeze(-3)
        )  # (..., T, S, width)
        return self.v(hidden).squeeze(-1)  # (..., T, S)
