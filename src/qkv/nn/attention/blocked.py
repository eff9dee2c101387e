"""A substitute for the eager equation that computes only the pairs a sparse mask may allow, on any device.

Two ways, by what the mask knows of itself:
- a mask with a `reach` (window, block, documents): each run of queries meets one run of keys;
- the Sparse Transformer's patterns: each query's keys come from two regroupings of the positions, under one softmax.
Time and memory grow with the number of pairs, forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention import fused
from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Document, Fixed, Mask, Strided
from qkv.nn.attention.softmax import softmax_or_zeros

SIZE = 128  # queries that share one run of keys


def serves(mask: Mask, T: int, S: int, device: torch.device) -> bool:
    """Worth it when less than half of what a causal mask allows is left."""
    pattern = sparse_pattern(mask)
    if pattern is not None:
        return T == S and 4 * pattern.stride < S
    looks_at_ids = any(isinstance(part, Document) for part in mask.members)
    if looks_at_ids and (device.type != "cpu" or torch.compiler.is_compiling()):
        return False  # to know its reach, the host would have to wait for the device
    runs = runs_of_keys(mask, T, S)
    return runs is not None and sum((high - low) * min(SIZE, T) for low, high in runs) < T * S / 4


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T X"]:
    T, S = query.shape[-2], key.shape[-2]
    if T == 0 or S == 0:  # nothing to cut into blocks
        return fused.attend(query, key, value, mask, bias, scale, dropout)
    pattern = None if mask is None else sparse_pattern(mask)
    runs = None if mask is None else runs_of_keys(mask, T, S)
    if mask is not None and pattern is not None and T == S:
        return attend_views(query, key, value, mask, bias, scale, dropout, views(pattern, S, query.device))
    if mask is not None and runs is not None:
        return attend_runs(query, key, value, mask, bias, scale, dropout, runs)
    raise ValueError("kernel blocked needs a sparse mask: Window, Block or Document, or Strided or Fixed with T = S")


def sparse_pattern(mask: Mask) -> Strided | Fixed | None:
    return next((part for part in mask.members if isinstance(part, Strided | Fixed)), None)


# Runs: the queries of one block share a run of keys.


def runs_of_keys(mask: Mask, T: int, S: int) -> list[tuple[int, int]] | None:
    """For each block of queries the keys [low, high) it can see, in whole blocks; None when the mask does not know."""
    runs = []
    for t in range(0, T, SIZE):
        reach = mask.reach(S - T + t, S - T + min(t + SIZE, T) - 1)
        if reach is None:
            return None
        low = max(0, reach[0]) // SIZE * SIZE
        runs.append((low, max(low, min(S, -(-reach[1] // SIZE) * SIZE))))
    return runs


def attend_runs(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
    runs: list[tuple[int, int]],
) -> Float[Tensor, "B H T X"]:
    T, S = query.shape[-2], key.shape[-2]
    # Split once and join neighbours: the backward of a slice would fill a whole (S, D) tensor for every run.
    queries, keys, values = query.split(SIZE, dim=2), key.split(SIZE, dim=2), value.split(SIZE, dim=2)
    position = torch.arange(S, device=query.device)
    outputs = []
    for block, (q, (low, high)) in enumerate(zip(queries, runs, strict=True)):
        pieces = slice(low // SIZE, -(-high // SIZE))
        if not keys[pieces]:  # nothing to see
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        row = position[S - T + block * SIZE :][: q.shape[2]].unsqueeze(1)  # (t, 1)
        column = position[low:high]  # (s,)
        allowed = mask.at(row, column)  # (B, H, t, s)
        added = None if bias is None else bias.tile(row, column, q)
        k, v = torch.cat(keys[pieces], dim=2), torch.cat(values[pieces], dim=2)  # (B, K, s, D)
        outputs.append(fused.with_matrices(q, k, v, allowed, added, scale, dropout))
    return torch.cat(outputs, dim=2)


# Views: each query's keys come from several regroupings.


@dataclass(frozen=True, eq=False)
class View:
    """All T positions regrouped so that the queries of a group share their keys; positions past the end are padding."""

    query: Int[Tensor, "G t"]
    key: Int[Tensor, "G s"]
    counts: Bool[Tensor, "G t s"]  # each pair counts in one view only


def views(pattern: Strided | Fixed, S: int, device: torch.device) -> list[View]:
    stride = pattern.stride
    groups = -(-S // stride)
    position = torch.arange(groups * stride, device=device).view(groups, stride)
    if isinstance(pattern, Strided):
        neighbours = torch.cat([position - stride, position, position + stride], dim=1)  # (G, 3 stride)
        distance = (position.unsqueeze(2) - neighbours.unsqueeze(1)).abs()
        near = View(position, neighbours, distance < stride)
        column = position.T.contiguous()  # (stride, G): the positions a multiple of stride apart
        return [near, View(column, column, column.unsqueeze(2) != column.unsqueeze(1))]
    own = View(position, position, torch.ones_like(position, dtype=torch.bool).unsqueeze(1).expand(-1, stride, -1))
    summaries = position[:, stride - pattern.summary :].reshape(1, -1)  # (1, G summary)
    everyone = position.view(1, -1)
    elsewhere = everyone.unsqueeze(2) // stride != summaries.unsqueeze(1) // stride
    return [own, View(everyone, summaries, elsewhere)]


def attend_views(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
    views: list[View],
) -> Float[Tensor, "B H T X"]:
    S, group = key.shape[-2], query.shape[1] // key.shape[1]
    scores = []
    for view in views:
        q = take(query, view.query)  # (B, H, G, t, D)
        k = take(key, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, D)
        score = (q * scale) @ k.transpose(-2, -1)  # (B, H, G, t, s)
        row, column = view.query.clamp(0, S - 1).unsqueeze(2), view.key.clamp(0, S - 1).unsqueeze(1)
        if bias is not None:
            score = score + bias.tile(row, column, query)
        real = (view.key >= 0) & (view.key < S)  # (G, s)
        allowed = mask.at(row, column) & view.counts & real.unsqueeze(1)  # (B, H, G, t, s)
        scores.append(restore(score.masked_fill(~allowed, -math.inf), view))  # (B, H, G t, s)
    weights = softmax_or_zeros(torch.cat(scores, dim=-1))
    if dropout:
        weights = F.dropout(weights, dropout)

    output: Tensor | None = None
    for view, weight in zip(views, weights.split([score.shape[-1] for score in scores], dim=-1), strict=True):
        v = take(value, view.key).repeat_interleave(group, dim=1)  # (B, H, G, s, X)
        part = restore(take(weight, view.query) @ v, view)  # (B, H, G t, X)
        output = part if output is None else output + part
    assert output is not None
    return output[:, :, :S]


def take(x: Float[Tensor, "B H L D"], index: Int[Tensor, "G n"]) -> Float[Tensor, "B H G n D"]:
    """Rows of x by position; a position past either end takes some row, which the mask then leaves out."""
    return x.index_select(2, index.clamp(0, x.shape[2] - 1).flatten()).unflatten(2, index.shape)


def restore(x: Float[Tensor, "B H G t D"], view: View) -> Float[Tensor, "B H L D"]:
    """Back from groups to the order of positions."""
    return x.flatten(2, 3).index_select(2, view.query.flatten().argsort())
