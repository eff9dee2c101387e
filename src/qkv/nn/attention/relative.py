"""Transformer-XL's relative positions (Dai et al. 2019): a score depends on the distance.

The score of query i and key j is a sum of four terms:

    q_i . k_j        content of both
    q_i . r_(i-j)    what the query's content prefers among distances
    u . k_j          the key's content, for any query
    v . r_(i-j)      the distance, for any query

which is (q_i + u) . k_j plus a bias (q_i + v) . r_(i-j), with r_d a learned projection of the
sinusoid of distance d.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.position import sinusoidal


class RelativePosition(nn.Module):
    """The weights r, u and v of one attention layer."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.width = width
        self.r = nn.Linear(width, heads * head_width, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, 1, head_width))
        self.v = nn.Parameter(torch.zeros(heads, 1, head_width))

    def forward(
        self, query: Float[Tensor, "B H T D"], S: int
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T S"]]:
        """The query to compare with the keys, and the bias to add to its scaled scores."""
        B, H, T, D = query.shape
        if T == 0:
            return query, query.new_empty(B, H, 0, S)

        # Distances from the farthest key in the past to the farthest in the future.
        distance = torch.arange(S - 1, -T, -1, device=query.device)  # (S + T - 1,)
        waves = sinusoidal(distance, self.width, "halves").to(self.r.weight.dtype)
        r = self.r(waves).view(-1, H, D).transpose(0, 1)  # (H, S + T - 1, D)
        scores = (query + self.v) @ r.transpose(-2, -1)  # (B, H, T, S + T - 1)

        return query + self.u, by_distance(scores, S) / math.sqrt(D)


def by_distance(scores: Float[Tensor, "B H T R"], S: int) -> Float[Tensor, "B H T S"]:
    """The score of the distance of query t and key s: row t read from column T - 1 - t on.

    In the flat layout, one row down and one column back is a step of R - 1, so a view does it.
    """
    B, H, T, R = scores.shape
    flat = scores.reshape(B, H, T * R)
    shifted = flat[:, :, T - 1 :]  # row t begins at t * (R - 1)

    return shifted.unfold(-1, S, max(1, R - 1))[:, :, :T]
