"""Inputs and right results of the checks of exercise 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv.learn.expectations import InputDraw
from qkv.nn.attention import Causal
from qkv.nn.attention.softmax import softmax_or_zeros


def right_causal(T: int) -> Tensor:
    """The library's causal mask as (T, T)."""
    return Causal().materialise(T, T)[0, 0]


def right_padding(lengths: Tensor, S: int) -> Tensor:
    """The padding mask as (B, 1, 1, S)."""
    return (torch.arange(S) < lengths.unsqueeze(-1))[:, None, None]


def right_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """The library's softmax over allowed keys."""
    return softmax_or_zeros(scores.masked_fill(~mask, -math.inf))


def draw_lengths(draw: InputDraw, S: int) -> Tensor:
    """Lengths of sequences, among them an empty one, one of a token, and one of all S tokens."""
    drawn = draw.integers(S + 1, draw.size)
    return torch.cat([torch.tensor([1, S]), drawn, torch.tensor([0])])


def draw_scores(draw: InputDraw, empty: bool) -> dict[str, Tensor]:
    """Scores (B, H, T, S), and a mask (B, 1, T, S) that allows a key for each query.

    Args:
        draw: Random inputs.
        empty: Hide all keys from the last query.
    """
    size = draw.size
    B, H, T, S = size, 2, size + 1, size + 2
    scores = 2 * draw.normal(B, H, T, S)
    mask = draw.integers(2, B, 1, T, S).bool()
    allowed = draw.integers(S - 1, B, 1, T, 1)
    mask.scatter_(-1, allowed, True)
    mask.scatter_(-1, allowed + 1, False)
    if empty:
        mask[:, :, -1] = False

    return {"scores": scores, "mask": mask}
