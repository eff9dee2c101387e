"""Scores to weights."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def softmax_or_zeros(scores: Float[Tensor, "*b S"]) -> Float[Tensor, "*b S"]:
    """Softmax, except that a row with nothing to look at (all -inf, or no keys) is zeros and not 0/0."""
    nowhere = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(nowhere, 0).softmax(-1).masked_fill(nowhere, 0)
