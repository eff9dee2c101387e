"""The first token alone through the last block, as a classifier that reads [CLS] needs it.

The last block of a stack then computes keys and values of all tokens, and everything else of one.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.attention.mask import Mask, Padding
from qkv.nn.block import Stack
from qkv.nn.hooks import has_hooks
from qkv.nn.unchanged import all_unchanged


def first_token(
    stack: Stack,
    x: Float[Tensor, "B T E"],
    positions: Int[Tensor, "#B T"],
    *,
    mask: Mask | None = None,
) -> Float[Tensor, "B 1 E"]:
    """The output of a stack for the first token: stack(x, positions, mask=mask)[:, :1]."""
    if not supports(stack, mask):
        return stack(x, positions, mask=mask)[:, :1]

    last: Any = stack.blocks[-1]
    for block in stack.blocks[:-1]:
        x = block(x, mask=mask)

    residual = last.attention_residual
    keys = residual.norm(x) if residual.before else x
    x = residual(x[:, :1], lambda y: last.attention(y, keys, mask=mask)[0])  # (B, 1, E)
    x = last.feed_forward_residual(x, last.feed_forward)

    return stack.final_norm(x)


def supports(stack: Stack, mask: Mask | None) -> bool:
    """True if attention does not depend on a query's position and no hook needs other tokens."""
    if stack.config.position in ("rotary", "alibi", "relative"):
        return False
    if mask is not None and type(mask) is not Padding:
        return False

    last = stack.blocks[-1]
    if has_hooks(last):
        return False

    return torch.compiler.is_compiling() or all_unchanged(last)
