"""Softmax over the keys: from scores to attention weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def softmax_or_zeros(scores: Float[Tensor, "*b S"]) -> Float[Tensor, "*b S"]:
    """Softmax over the last dimension; a row of nothing but -inf, or without keys, gives zeros."""
    if scores.shape[-1] == 0:
        return scores

    nothing = scores.detach().amax(-1, keepdim=True).isneginf()  # (..., 1)
    if not torch.is_grad_enabled():
        return scores.softmax(-1).masked_fill_(nothing, 0)

    # The softmax of such a row is 0/0, which has no gradient, so its scores are replaced before.
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
