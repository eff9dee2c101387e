"""Transformer-XL's relative attention (Dai et al. 2019): what matters is how far, not where.

The score of query i and key j is a sum of four terms, q_i.k_j      what the words say q_i.r_(i-j)
    what the query's word wants of a distance u.k_j        what the key's word is worth to anyone
    v.r_(i-j)    what a distance is worth to anyone which is (q_i + u).k_j plus a bias (q_i +
    v).r_(i-j), with r_d a learned projection of the sinusoid of distance d.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.position import sinusoidal


class RelativePosition(nn.Module):
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
        if T == 0:  # there is no distance
            return query, query.new_empty(B, H, 0, S)

        distance = torch.arange(
            S - 1, -T, -1, device=query.device
        )  # (S + T - 1,): from the farthest past on
        waves = sinusoidal(distance, self.width, "halves").to(self.r.weight.dtype)
        r = self.r(waves).view(-1, H, D).transpose(0, 1)  # (H, S + T - 1, D)
        scores = (query + self.v) @ r.transpose(-2, -1)  # (B, H, T, S + T - 1)

        return query + self.u, by_distance(scores, S) / math.sqrt(D)


def by_distance(scores: Float[Tensor, "B H T R"], S: int) -> Float[Tensor, "B H T S"]:
    """Pick for query t and key s the score of their distance: row t is read from column T - 1 - t
    on.

    Laid out flat, moving one row down and one column back is one step of R - 1, so a view does it.
    """
    B, H, T, R = scores.shape
    flat = scores.reshape(B, H, T * R)
    padded = flat[:, :, T - 1 :]  # now row t begins at t * (R - 1)

    return padded.unfold(-1, S, max(1, R - 1))[:, :, :T]
