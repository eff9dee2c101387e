"""The library's modules with the weights of a student's, to compare their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.learn.expectations import Failed, InputDraw
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Block
from qkv.nn.stack_config import StackConfig


@torch.no_grad()
def randomise(module: nn.Module, draw: InputDraw) -> None:
    """Draw all parameters anew, so that no bias is 0 and no gain is 1."""
    for parameter in module.parameters():
        parameter.copy_(0.6 * draw.normal(*parameter.shape))


def draw_lengths(draw: InputDraw, longest: int) -> Tensor:
    """The lengths of three rows: 1, some number, and the longest."""
    middle = int(draw.integers(longest + 1, 1, low=1))
    return torch.tensor([1, middle, longest])


@torch.no_grad()
def library_attention(mine: Any, heads: int) -> MultiHeadAttention:
    """Multi-head attention with the weights of a student's."""
    attention = MultiHeadAttention(mine.query.in_features, heads)
    copy_attention(attention, mine)
    return attention


@torch.no_grad()
def library_decoder_block(mine: Any, heads: int) -> Block:
    """A block with cross-attention that has the weights of a student's DecoderBlock."""
    block = Block(StackConfig(width=mine.attention.query.in_features, heads=heads), cross=True)
    copy_block(block, mine)
    copy_attention(block.cross_attention, mine.cross_attention)
    copy_norm(block.cross_attention_residual.norm, mine.cross_norm)
    return block


def copy_block(block: Block, mine: Any) -> None:
    """Copy self-attention, feed-forward and their norms from a student's block."""
    copy_attention(block.attention, mine.attention)
    copy_norm(block.attention_residual.norm, mine.attention_norm)
    copy_linear(block.feed_forward.up, mine.feed_forward.up)
    copy_linear(block.feed_forward.down, mine.feed_forward.down)
    copy_norm(block.feed_forward_residual.norm, mine.feed_forward_norm)


def copy_attention(attention: MultiHeadAttention, mine: Any) -> None:
    """Copy the projections; the library's query, key and value are rows of one matrix."""
    projections = (mine.query, mine.key, mine.value)
    attention.qkv.weight.copy_(torch.cat([one.weight for one in projections]))
    attention.qkv.bias.copy_(torch.cat([one.bias for one in projections]))
    copy_linear(attention.output, mine.output)


def copy_linear(linear: Any, mine: nn.Linear) -> None:
    """Copy matrix and bias."""
    linear.weight.copy_(mine.weight)
    linear.bias.copy_(mine.bias)


def copy_norm(norm: Any, mine: Any) -> None:
    """Copy gain and bias of a layer norm."""
    norm.gain.copy_(mine.weight)
    norm.bias.copy_(mine.bias)


# What a result depends on


def changed_positions(function: Callable[[Tensor], Any], x: Tensor, position: int) -> list[int]:
    """The positions of a result (B, T, E) that change with one position of x (B, S, ...)."""
    # Not a constant: a layer norm would remove it.
    other = x.clone()
    other[:, position] = torch.linspace(1, -1, x.shape[-1]) - x[:, position]
    before = function(x)
    after = function(other)
    if not isinstance(before, Tensor) or before.dim() != 3:
        raise Failed("forward: expected a tensor of shape (B, T, E)")

    differs = (before - after).detach().abs().amax((0, 2)) > 1e-6
    return [int(index) for index in differs.nonzero()]


def expect_integers(what: str, *found: Any) -> None:
    """Fail unless results are tensors of integers, as token ids are."""
    for tensor in found:
        if isinstance(tensor, Tensor) and tensor.dtype != torch.int64:
            raise Failed(f"{what}: token ids are integers (torch.int64), not {tensor.dtype}")
