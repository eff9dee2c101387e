"""From scores to attention weights: softmax over the keys, and what the lectures try before it.

Scores of keys that a mask hides are -inf, and their weights 0 in every form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

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


def proportional(scores: Float[Tensor, "*b S"]) -> Float[Tensor, "*b S"]:
    """Weights proportional to the scores: s / sum(s).

    Only scores of 0 and above have shares, so negative ones count as 0. A row whose sum is 0 gives
    zeros. The weights of a row with a small sum are as exact as any, and at most 1; their gradient
    grows as 1 / sum, which makes training with them unstable where scores are near 0.
    """
    shares = scores.relu()
    total = shares.sum(-1, keepdim=True)  # (..., 1)
    return shares / total.where(total > 0, 1)


def unnormalised(scores: Float[Tensor, "*b S"]) -> Float[Tensor, "*b S"]:
    """The scores themselves as weights, of any sign and any sum; 0 where a mask hides the key."""
    return scores.masked_fill(scores.isneginf(), 0)


Normalise = Literal["softmax", "proportional", "none"]

NORMALISE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": softmax_or_zeros,
    "proportional": proportional,
    "none": unnormalised,
}
"""How scores become weights, by name."""
