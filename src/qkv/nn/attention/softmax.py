"""Scores to weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def softmax_or_zeros(scores: Float[Tensor, "*b S"]) -> Float[Tensor, "*b S"]:
    """Softmax, except that a row with nothing to look at (all -inf, or no keys) is zeros and not
    0/0.
    """
    if scores.shape[-1] == 0:
        return scores

    nowhere = scores.detach().amax(-1, keepdim=True).isneginf()  # (..., 1)
    if not torch.is_grad_enabled():
        return scores.softmax(-1).masked_fill_(nowhere, 0)

    return (
        scores.masked_fill(nowhere, 0).softmax(-1).masked_fill(nowhere, 0)
    )  # 0/0 would have no gradient
