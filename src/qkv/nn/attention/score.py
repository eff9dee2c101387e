"""Scores: the similarity of a query and a key.

A score is a function from queries (..., T, D) and keys (..., S, D) to one number for each pair,
(..., T, S). `dot` and `scaled_dot` have no weights; `General` and `Additive` learn theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]


def dot(query: Float[Tensor, "*q T D"], key: Float[Tensor, "*k S D"]) -> Float[Tensor, "*s T S"]:
    """The dot product <q, k>.

    Args:
        query: (..., T, D).
        key: (..., S, D).

    Returns:
        One score for each pair: (..., T, S).

    Example:
        >>> import torch
        >>> dot(torch.eye(2), torch.tensor([[3.0, 4.0]]))
        tensor([[3.],
                [4.]])
    """
    return query @ key.transpose(-2, -1)


def scaled_dot(
    query: Float[Tensor, "*q T D"], key: Float[Tensor, "*k S D"]
) -> Float[Tensor, "*s T S"]:
    """The scaled dot product <q, k> / sqrt(D).

    A sum of D products has a variance of D, and softmax saturates on large numbers.

    Args:
        query: (..., T, D).
        key: (..., S, D).

    Returns:
        One score for each pair: (..., T, S).

    Example:
        >>> import torch
        >>> scaled_dot(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[2., 2.]])
    """
    return dot(query / math.sqrt(query.shape[-1]), key)


class General(nn.Module):
    """<A q, B k> with learned A and B, for queries and keys of different widths.

    Args:
        query_width: Width of a query.
        key_width: Width of a key; by default that of a query.
        width: Width in which they are compared; by default that of a query.

    Example:
        >>> import torch
        >>> General(4, key_width=6)(torch.zeros(2, 4), torch.zeros(3, 6)).shape
        torch.Size([2, 3])
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
    """v . tanh(W [q; k]): a hidden layer compares query and key (Bahdanau et al. 2015).

    W [q; k] is W_q q + W_k k, so a decoder can project its keys once for all its queries.

    Args:
        query_width: Width of a query.
        key_width: Width of a key; by default that of a query.
        width: Width of the hidden layer; by default that of a query.

    Example:
        >>> import torch
        >>> Additive(4, key_width=6)(torch.zeros(2, 4), torch.zeros(3, 6)).shape
        torch.Size([2, 3])
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
        """The scores of keys that W_k has projected already: (..., T, S)."""
        query = self.W_q(query).unsqueeze(-2)  # (..., T, 1, width)
        hidden = torch.tanh(query + projected.unsqueeze(-3))  # (..., T, S, width)
        return hidden @ self.v.weight[0]  # a matrix product of width 1 is slow on a GPU
