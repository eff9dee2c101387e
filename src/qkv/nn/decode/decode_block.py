"""A decoder block for one token of each of a few rows on a GPU, in five or seven Triton kernels.

`decode_step.installed` lets the blocks of a model use it for steps with a `StaticCache`, with the
same numbers.
"""

from __future__ import annotations

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Mask
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Block, Residual
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.cache.static import StaticCache
from qkv.nn.decode import decode_attention
from qkv.nn.feed_forward import FeedForward
from qkv.nn.linear import few_rows, gemv
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm, RMSNorm
from qkv.nn.unchanged import unchanged


def decode_block(
    block: Block,
    x: Float[Tensor, "B T E"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
    state: Cache = NO_STATE,
) -> Float[Tensor, "B T E"]:
    """`Block.forward` by the kernels below where they can compute it."""
    if supports(block, x, state):
        return run(block, x, rotary, cast(StaticCache, state))

    return Block.forward(block, x, mask=mask, bias=bias, rotary=rotary, state=state)


def supports(block: Block, x: Tensor, state: object) -> bool:
    """True for a few rows through a decoder block with pre-norm, without hooks or adapters."""
    if not isinstance(state, StaticCache) or not decode_attention.supports(block.attention, state):
        return False
    if x.shape[1] != 1 or block.training or not block.attention_residual.before:
        return False
    if block.attention.relative is not None or block.cross_attention is not None:
        return False

    layers = matrices(block)
    weights = [layer.weight for layer in layers]
    if not gemv.supports(x, *weights) and not few_rows.supports(x, *weights):
        return False
    if any(layer.adapters is not None for layer in layers):
        return False

    points = (block.hooks, block.attention.hooks, block.feed_forward.hooks)
    return not any(hooks.callbacks for hooks in points)


def matrices(block: Block) -> tuple[Linear, ...]:
    attention = block.attention
    feed_forward = block.feed_forward
    return attention.qkv, attention.output, feed_forward.up, feed_forward.down


def is_plain(block: Block) -> bool:
    """True if the block and its parts are unchanged modules of the classes computed here."""
    if not unchanged(block, Block) or not unchanged(block.attention, MultiHeadAttention):
        return False
    if not unchanged(block.feed_forward, FeedForward):
        return False
    if block.feed_forward.activation not in gemv.ACTIVATIONS:
        return False
    if not all(unchanged(layer, Linear) for layer in matrices(block)):
        return False

    for residual in (block.attention_residual, block.feed_forward_residual):
        if not unchanged(residual, Residual) or not unchanged(residual.dropout, nn.Dropout):
            return False
        if not unchanged(residual.norm, LayerNorm, RMSNorm):
            return False

    return True


def run(
    block: Block,
    x: Float[Tensor, "B 1 E"],
    rotary: Float[Tensor, "2 #B 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "B 1 E"]:
    """Norm, attention, residual, norm, feed-forward, residual."""
    qkv, output, up, down = matrices(block)
    norm = block.attention_residual.norm
    projected = multiply(x, qkv, norm=norm)  # (B, 1, (H + 2K) D)
    heads = decode_attention.attend_and_store(
        projected, block.attention, rotary, state
    )  # (B, 1, H D)
    x = multiply(heads, output, residual=x)

    norm = block.feed_forward_residual.norm
    activation = gemv.ACTIVATIONS[block.feed_forward.activation]
    hidden = multiply(x, up, norm=norm, activation=activation)  # (B, 1, F)

    return multiply(hidden, down, residual=x)


def multiply(
    x: Float[Tensor, "B 1 E"],
    layer: Linear,
    *,
    norm: LayerNorm | RMSNorm | None = None,
    activation: int = 0,
    residual: Float[Tensor, "B 1 N"] | None = None,
) -> Float[Tensor, "B 1 R"]:
    """residual + activation(norm(x) W^T + bias)."""
    weight = layer.weight
    bias = layer.bias
    if len(x) == 1:
        return gemv.linear_row(x, weight, bias, norm=norm, activation=activation, residual=residual)

    if norm is not None:
        x = gemv.norm_rows(x, norm)

    return few_rows.linear_rows(x, weight, bias, activation=activation, residual=residual)
