"""The Sparse Transformer's patterns on any device, with any mask, bias and dropout.

Only the pairs of a pattern are computed. sparse_flash.py is faster for a causal pattern alone.

The keys of a query are of two kinds, near and far. Each kind is a view: the positions regrouped so
that the queries of a group share their keys. Attention within a view gives an output and the sum of
its exponentials; the whole is the mean of the views' outputs weighted by those sums, which is
attention once more, over views.

The backward pass computes the scores again, some groups at a time: memory grows with the length.
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

from qkv.nn.attention.kernels.table import AttentionCall
from qkv.nn.attention.mask import Causal
from qkv.nn.attention.softmax import softmax_or_zeros
from qkv.nn.attention.sparse_mask import Fixed, Strided

# Scores in memory at a time: few enough to be small, enough to be fast.
PAIRS_ON_CPU = 2**22
PAIRS_ON_GPU = 2**27


@dataclass(frozen=True, eq=False)
class View:
    """Positions in G groups; the t queries of a group attend to its s keys."""

    query: Int[Tensor, "G t"]
    """Every position once; a position past the end is padding."""
    key: Int[Tensor, "G s"]
    contains: Callable[[Tensor, Tensor], Tensor]
    """Whether a pair (q, k) belongs to this view: every pair belongs to one view only."""

    def parts(self, groups: int) -> Iterator[View]:
        """This view, `groups` groups at a time."""
        for query, key in zip(self.query.split(groups), self.key.split(groups), strict=True):
            yield View(query, key, self.contains)


def views(pattern: Strided | Fixed, causal: bool, S: int, device: torch.device) -> list[View]:
    """The two views of a pattern over S positions."""
    stride = pattern.stride
    groups = -(-S // stride)
    position = torch.arange(groups * stride, device=device).view(groups, stride)
    if isinstance(pattern, Strided):
        neighbours = [position - stride, position]
        if not causal:
            neighbours.append(position + stride)

        near = torch.cat(neighbours, dim=1)  # (G, 2 or 3 stride)
        column = position.T.contiguous()  # (stride, G): the positions a multiple of stride apart
        return [
            View(position, near, lambda q, k: (q - k).abs() < stride),
            View(column, column, torch.ne),
        ]

    last = position[:, stride - pattern.summary :]  # (G, summary)
    summaries = last.reshape(1, -1).expand(groups, -1)  # (G, G summary)

    return [
        View(position, position, lambda q, k: q // stride == k // stride),
        View(position, summaries, lambda q, k: q // stride != k // stride),
    ]


def attend(call: AttentionCall, pattern: Strided | Fixed) -> Float[Tensor, "B H T X"]:
    """The output of a call whose mask has this pattern; queries and keys are as many."""
    query = call.query
    assert call.mask is not None
    T = query.shape[2]
    causal = any(isinstance(part, Causal) for part in call.mask.members)
    outputs = []
    sums = []

    for view in views(pattern, causal, T, query.device):
        output, total = attend_view(call, view)
        order = view.query.flatten().argsort()[:T]  # back to the order of positions
        outputs.append(output.index_select(2, order))
        sums.append(total.index_select(2, order))

    # Attention over views: (B, H, T, X, 2) times (B, H, T, 2, 1).
    weights = softmax_or_zeros(torch.stack(sums, dim=-1)).to(query.dtype)
    return (torch.stack(outputs, dim=-1) @ weights.unsqueeze(-1)).squeeze(-1)


def attend_view(
    call: AttentionCall, view: View
) -> tuple[Float[Tensor, "B H N X"], Float[Tensor, "B H N"]]:
    """Attention within a view in its own order, N = G t, and the log-sum of its exponentials."""

    def run(query: Tensor, key: Tensor, value: Tensor, part: View) -> tuple[Tensor, Tensor]:
        return attend_part(call._replace(query=query, key=key, value=value), part)

    query, key, value = call[:3]
    B, H = query.shape[:2]
    pairs = PAIRS_ON_CPU if query.device.type == "cpu" else PAIRS_ON_GPU
    groups = max(1, pairs // (B * H * view.query.shape[1] * view.key.shape[1]))
    outputs = []
    sums = []
    for part in view.parts(groups):
        output, total = checkpoint(
            run, query, key, value, part, use_reentrant=False, preserve_rng_state=call.dropout > 0
        )
        outputs.append(output)
        sums.append(total)

    return torch.cat(outputs, dim=2).flatten(2, 3), torch.cat(sums, dim=2).flatten(2, 3)


def attend_part(
    call: AttentionCall, view: View
) -> tuple[Float[Tensor, "B H G t X"], Float[Tensor, "B H G t"]]:
    """Attention within some groups of a view, and the logarithm of its sum of exponentials."""
    query, key, value, mask, bias, scale, dropout = call
    assert mask is not None
    T = query.shape[2]
    group = query.shape[1] // key.shape[1]
    q = take(query, view.query)  # (B, H, G, t, D)
    k = take(key, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, D)
    v = take(value, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, X)

    # Scores of the pairs that the mask allows and that belong to this view.
    row = view.query.clamp(0, T - 1).unsqueeze(2)  # (G, t, 1)
    column = view.key.clamp(0, T - 1).unsqueeze(1)  # (G, 1, s)
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, H, G, t, s)
    if bias is not None:
        scores = scores + bias.tile(row, column, query)

    real: Bool[Tensor, "G 1 s"] = ((view.key >= 0) & (view.key < T)).unsqueeze(1)
    allowed = mask.at(row, column) & view.contains(row, column) & real  # (B, H, G, t, s)
    scores = scores.masked_fill(~allowed, -math.inf)

    # Softmax, with zeros and a sum of exp(-inf) for a query without keys.
    nothing = scores.isneginf().all(-1, keepdim=True)
    scores = scores.masked_fill(nothing, 0)
    sums = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    sums = sums.logsumexp(-1).masked_fill(nothing.squeeze(-1), -math.inf)  # (B, H, G, t)
    weights = scores.softmax(-1).masked_fill(nothing, 0)
    if dropout:
        weights = F.dropout(weights, dropout)

    return weights @ v, sums


def take(x: Float[Tensor, "B H L D"], index: Int[Tensor, "G n"]) -> Float[Tensor, "B H G n D"]:
    """Rows of x by position; a position past either end takes a row that the mask leaves out."""
    return x.index_select(2, index.clamp(0, x.shape[2] - 1).flatten()).unflatten(2, index.shape)
