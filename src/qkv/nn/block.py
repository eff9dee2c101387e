"""The Transformer block (attention and feed-forward, each with residual and norm), and a stack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Mask
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.feed_forward import FeedForward
from qkv.nn.hooks import TRANSFORMER_LENS, HookPoints
from qkv.nn.norm import norm
from qkv.nn.own_parts import part_of
from qkv.nn.position import position_encoding
from qkv.nn.stack_config import StackConfig
from qkv.nn.unchanged import fused


@fused
class Residual(nn.Module):
    """x + sublayer(norm(x)), or norm(x + sublayer(x)): "add and norm"."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.norm = norm(config.norm, config.width, config.norm_epsilon)
        self.before = config.norm_placement == "before"
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "B T E"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B T E"]:
        if self.before:
            return x + self.dropout(sublayer(self.norm(x)))

        return self.norm(x + self.dropout(sublayer(x)))


@fused
class Block(nn.Module):
    """Self-attention, then (in a decoder) cross-attention to the source, then feed-forward.

    Args:
        config: Sizes and kinds of its parts.
        layer: Number of the block, under which it stores keys and values in a cache.
        cross: Add cross-attention.

    Example:
        >>> import torch
        >>> from qkv.nn.attention import Causal
        >>> block = Block(StackConfig(width=8, heads=2))
        >>> block(torch.zeros(1, 3, 8), mask=Causal()).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: StackConfig, layer: int = 0, *, cross: bool = False) -> None:
        super().__init__()
        self.attention = attention_of(config, layer, relative=config.position == "relative")
        self.attention_residual = Residual(config)
        self.cross_attention: Any = None
        self.cross_attention_residual: Any = None
        if cross:
            self.cross_attention = attention_of(config, layer, relative=False)
            self.cross_attention_residual = Residual(config)

        feed_forward = part_of("feed_forward", config.feed_forward, FeedForward)
        self.feed_forward = feed_forward(
            config.width, config.width_of_hidden, config.activation, bias=config.feed_forward_bias
        )
        self.feed_forward_residual = Residual(config)
        self.hooks = HookPoints("before", "between", "after", aliases=TRANSFORMER_LENS)

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
        state: Cache = NO_STATE,
    ) -> Float[Tensor, "B T E"]:
        """The residual stream after this block.

        Args:
            x: The residual stream before it.
            mask: Which positions each token may attend to.
            bias: Numbers added to the scores of self-attention.
            rotary: Cosines and sines of rotary positions.
            state: Keys and values of earlier calls, and the source of cross-attention.
        """

        def attention(y: Tensor) -> Tensor:
            return self.attention(y, mask=mask, bias=bias, rotary=rotary, state=state.target)[0]

        x = self.hooks("before", x)
        x = self.attention_residual(x, attention)
        if self.cross_attention is not None:
            x = self.cross_attention_residual(x, partial(self.attend_to_source, state.source))

        x = self.hooks("between", x)
        x = self.feed_forward_residual(x, self.feed_forward)

        return self.hooks("after", x)

    def attend_to_source(self, source: Cache, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        output, _ = self.cross_attention(x, state=source)
        return output


def attention_of(config: StackConfig, layer: int, *, relative: bool) -> MultiHeadAttention:
    attention = part_of("attention", config.attention, MultiHeadAttention)
    return attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        dropout=config.attention_dropout,
        relative=relative,
        layer=layer,
    )


class Stack(nn.Module):
    """Blocks on top of each other, with what they share: positions and the last norm.

    Args:
        config: Sizes and kinds of the blocks.
        depth: Number of blocks; by default that of the config.
        cross: Add cross-attention to every block.

    Example:
        >>> import torch
        >>> stack = Stack(StackConfig(width=8, heads=2, depth=2, position="rotary"))
        >>> stack(torch.zeros(1, 3, 8), torch.arange(3).unsqueeze(0)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self, config: StackConfig, *, depth: int | None = None, cross: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.cross = cross
        layers = range(depth or config.depth)
        self.blocks = nn.ModuleList(Block(config, layer, cross=cross) for layer in layers)
        self.position = position_encoding(config)
        self.norm = None
        if config.ends_with_norm:
            self.norm = norm(config.norm, config.width, config.norm_epsilon)

        self.hooks = HookPoints("output")

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        positions: Int[Tensor, "#B T"],
        *,
        mask: Mask | None = None,
        state: Cache = NO_STATE,
    ) -> Float[Tensor, "B T E"]:
        """The output of the last block, and of the last norm.

        Args:
            x: Embeddings.
            positions: The position of each token, for rotary positions.
            mask: Which positions each token may attend to.
            state: Keys and values of earlier calls, and the source of cross-attention.
        """
        x = self.position.add(x, positions)
        rotary = self.position.angles(positions)
        bias = self.position.bias(x.device)
        x = self.run_blocks(x, mask=mask, bias=bias, rotary=rotary, state=state)
        if self.norm is not None:
            x = self.norm(x)

        return self.hooks("output", x)

    def run_blocks(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Mask | None,
        bias: Bias | None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None,
        state: Cache,
    ) -> Float[Tensor, "B T E"]:
        """One block after the other."""
        for block in self.blocks:
            x = block(x, mask=mask, bias=bias, rotary=rotary, state=state)

        return x
