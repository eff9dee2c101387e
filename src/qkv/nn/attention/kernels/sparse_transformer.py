"""The Sparse Transformer's patterns, computing only their pairs, on any device.

A query's keys lie in two places, near and far. Each is a view: the positions regrouped so that the
queries of a group share their keys. Attention within each view gives an output and the sum of its
exponentials; the whole is the views' outputs weighted by those sums, which is attention once more,
over views.

The backward pass computes a view's scores again, a part of its groups at a time: memory grows with
the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Fixed, Mask, Strided
from qkv.nn.attention.softmax import softmax_or_zeros

PAIRS_ON_CPU, PAIRS_ON_GPU = (
    2**22,
    2**27,
)  # scores held at a time: few enough to be small, enough to be fast


@dataclass(frozen=True, eq=False)
class View:
    query: Int[Tensor, "G t"]  # every position once; past the end is padding
    key: Int[Tensor, "G s"]
    counts: Callable[
        [Tensor, Tensor], Tensor
    ]  # whether a pair (q, k) is this view's: each is one view's only

    def parts(self, groups: int) -> Iterator[View]:
        for query, key in zip(self.query.split(groups), self.key.split(groups), strict=True):
            yield View(query, key, self.counts)


def views(pattern: Strided | Fixed, causal: bool, S: int, device: torch.device) -> list[View]:
    stride = pattern.stride
    groups = -(-S // stride)
    position = torch.arange(groups * stride, device=device).view(groups, stride)
    if isinstance(pattern, Strided):
        after = [] if causal else [position + stride]
        neighbours = torch.cat([position - stride, position, *after], dim=1)  # (G, 2 or 3 stride)
        column = position.T.contiguous()  # (stride, G): the positions a multiple of stride apart
        return [
            View(position, neighbours, lambda q, k: (q - k).abs() < stride),
            View(column, column, torch.ne),
        ]

    summaries = (
        position[:, stride - pattern.summary :].reshape(1, -1).expand(groups, -1)
    )  # (G, G summary)

    return [
        View(position, position, lambda q, k: q // stride == k // stride),
        View(position, summaries, lambda q, k: q // stride != k // stride),
    ]


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K T D"],
    value: Float[Tensor, "B K T X"],
    mask: Mask,
    pattern: Strided | Fixed,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T X"]:
    B, H, T, _ = query.shape
    at_a_time = PAIRS_ON_CPU if query.device.type == "cpu" else PAIRS_ON_GPU
    causal = any(isinstance(part, Causal) for part in mask.members)
    outputs, sums = [], []

    for view in views(pattern, causal, T, query.device):
        groups = max(1, at_a_time // (B * H * view.query.shape[1] * view.key.shape[1]))

        def run(query: Tensor, key: Tensor, value: Tensor, part: View) -> tuple[Tensor, Tensor]:
            return attend_part(query, key, value, part, mask, bias, scale, dropout)

        parts = [
            checkpoint(
                run, query, key, value, part, use_reentrant=False, preserve_rng_state=dropout > 0
            )
            for part in view.parts(groups)
        ]

        output = torch.cat([output for output, _ in parts], dim=2).flatten(2, 3)  # (B, H, G t, X)
        sum_ = torch.cat([sum_ for _, sum_ in parts], dim=2).flatten(2, 3)  # (B, H, G t)
        order = view.query.flatten().argsort()[:T]  # back to the order of positions
        outputs.append(output.index_select(2, order))
        sums.append(sum_.index_select(2, order))

    weights = softmax_or_zeros(torch.stack(sums, dim=-1)).to(query.dtype)  # (B, H, T, 2)

    return (torch.stack(outputs, dim=-1) @ weights.unsqueeze(-1)).squeeze(
        -1
    )  # (B, H, T, X, 2) (B, H, T, 2, 1)


def attend_part(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K T D"],
    value: Float[Tensor, "B K T X"],
    view: View,
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> tuple[Float[Tensor, "B H G t X"], Float[Tensor, "B H G t"]]:
    """Attention within some groups of a view, and the logarithm of its sum of exponentials."""
    T, group = query.shape[2], query.shape[1] // key.shape[1]
    q = take(query, view.query)  # (B, H, G, t, D)
    k = take(key, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, D)
    v = take(value, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, X)
    row, column = (
        view.query.clamp(0, T - 1).unsqueeze(2),
        view.key.clamp(0, T - 1).unsqueeze(1),
    )  # (G, t, 1), (G, 1, s)
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, H, G, t, s)
    if bias is not None:
        scores = scores + bias.tile(row, column, query)

    real: Bool[Tensor, "G 1 s"] = ((view.key >= 0) & (view.key < T)).unsqueeze(1)
    allowed = mask.at(row, column) & view.counts(row, column) & real  # (B, H, G, t, s)
    scores = scores.masked_fill(~allowed, -math.inf)

    nowhere = scores.isneginf().all(-1, keepdim=True)
    scores = scores.masked_fill(nowhere, 0)
    sums = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    sums = sums.logsumexp(-1).masked_fill(nowhere.squeeze(-1), -math.inf)  # (B, H, G, t)
    weights = scores.softmax(-1).masked_fill(nowhere, 0)
    if dropout:
        weights = F.dropout(weights, dropout)

    return weights @ v, sums


def take(x: Float[Tensor, "B H L D"], index: Int[Tensor, "G n"]) -> Float[Tensor, "B H G n D"]:
    """Rows of x by position; a position past either end takes some row, which the mask then leaves
    out.
    """
    return x.index_select(2, index.clamp(0, x.shape[2] - 1).flatten()).unflatten(2, index.shape)
