"""What heads and layers add to the residual stream of a pre-norm stack."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.model import Model
from qkv.models.sites import output_stack
from qkv.nn.block import Stack
from qkv.nn.norm import LayerNorm, RMSNorm


def pre_norm_stack(model: Model, what: str) -> tuple[str, Stack]:
    """The stack that leads to the output, with its name, if its residual stream is a plain sum.

    Raises:
        ValueError: If the model is an RNN, is a GPT of the user's own, or has norms after its
            sublayers; `what` begins the message.
    """
    named_stack = output_stack(model)
    if named_stack is None:
        raise ValueError(f"{what}: an RNN has no residual stream; expected another model")

    name, stack = named_stack
    if not isinstance(stack, Stack):
        raise ValueError(
            f"{what}: the parts of this {type(stack).__name__} are unknown; expected a model of "
            "the package"
        )
    if stack.config.norm_placement != "before":
        raise ValueError(
            f"{what}: this model has a norm after each sublayer (post-norm), so its residual "
            "stream is not a sum of parts; expected a model with norm_placement = before"
        )

    return name, stack


def written_by_heads(
    attention: Any, heads: Float[Tensor, "H T D"]
) -> tuple[Float[Tensor, "H T E"], Float[Tensor, "E"]]:
    """What each head adds to the residual stream, and the bias of the output projection.

    The projection itself is called on one head at a time, so that adapters and int8 weights count.
    """
    H, T, D = heads.shape
    alone = heads.new_zeros(H + 1, T, H, D)
    for head in range(H):
        alone[head, :, head] = heads[head]

    outputs = attention.output(alone.flatten(2))  # (H + 1, T, E); the last row is the bias alone
    bias = outputs[-1]

    return outputs[:-1] - bias, bias[0]


def scaled_as_in(
    norm: nn.Module | None, parts: Float[Tensor, "N E"], whole: Float[Tensor, "E"]
) -> Float[Tensor, "N E"]:
    """The final norm of each part with the scale that the whole vector has; its bias is left out.

    Raises:
        ValueError: If the norm is neither a layer norm nor an RMS norm.
    """
    if norm is None:
        return parts

    if isinstance(norm, LayerNorm):
        parts = parts - parts.mean(-1, keepdim=True)
        whole = whole - whole.mean()
    elif not isinstance(norm, RMSNorm):
        raise ValueError(f"norm: expected a layer norm or an RMS norm, not a {type(norm).__name__}")

    scale = torch.rsqrt(whole.square().mean() + norm.epsilon)
    return norm.gain.to(parts) * parts * scale
