"""The block that every Transformer here is a stack of: attention, feed-forward, each with a
residual and a norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias, Distance
from qkv.nn.attention.mask import Mask, Padding
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.cache import (
    DecoderState,
    KeyValueCache,
    PackedBatch,
    PackedDecoderBatch,
    SegmentMemory,
    StaticCache,
)
from qkv.nn.feed_forward import FeedForward
from qkv.nn.hooks import HookPoints, has_hooks
from qkv.nn.linear import decode_block
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm, RMSNorm, norm
from qkv.nn.position import alibi_slopes, rotary_angles
from qkv.nn.stack_config import StackConfig
from qkv.nn.unchanged import all_unchanged, fused, unchanged


@fused
class Residual(nn.Module):
    """x + sublayer(norm(x)), or norm(x + sublayer(x)): the "add and norm" of the figure."""

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
    """Self-attention, then (in a decoder) cross-attention to the source, then feed-forward."""

    def __init__(self, config: StackConfig, layer: int = 0, *, cross: bool = False) -> None:
        super().__init__()

        def attention(relative: bool) -> MultiHeadAttention:
            return MultiHeadAttention(
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

        self.attention = attention(config.position == "relative")
        self.attention_residual = Residual(config)
        self.cross_attention = attention(False) if cross else None
        self.cross_attention_residual = Residual(config) if cross else None
        self.feed_forward = FeedForward(
            config.width, config.width_of_hidden, config.activation, bias=config.feed_forward_bias
        )
        self.feed_forward_residual = Residual(config)
        self.hooks = HookPoints("before", "between", "after")  # the residual stream

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
        source: Float[Tensor, "N S E"] | None = None,
        source_mask: Mask | None = None,
        state: KeyValueCache
        | SegmentMemory
        | DecoderState
        | PackedBatch
        | PackedDecoderBatch
        | None = None,
        first: bool = False,
    ) -> Float[Tensor, "B W E"]:
        """Every word (W = T), or with `first` only the first one (W = 1)."""
        if first:
            return self.first_word(x, mask)
        if (
            isinstance(state, StaticCache)
            and fusable(self)
            and decode_block.supports_block(self, x, state)
        ):
            return decode_block.through(self, x, rotary, state)

        own, source_state = (
            (state.target, state.source)
            if isinstance(state, DecoderState | PackedDecoderBatch)
            else (state, None)
        )
        x = self.hooks("before", x)
        x = self.attention_residual(
            x, lambda y: self.attention(y, mask=mask, bias=bias, rotary=rotary, state=own)[0]
        )
        if self.cross_attention is not None and self.cross_attention_residual is not None:
            x = self.cross_attention_residual(
                x, lambda y: self.look(y, source, source_mask, source_state)
            )

        x = self.hooks("between", x)
        x = self.feed_forward_residual(x, self.feed_forward)

        return self.hooks("after", x)

    def first_word(self, x: Float[Tensor, "B T E"], mask: Mask | None) -> Float[Tensor, "B 1 E"]:
        """Of the first word alone: it looks at all the others, and nobody looks at them any more."""
        residual = self.attention_residual
        looked_at = residual.norm(x) if residual.before else x
        x = residual(x[:, :1], lambda y: self.attention(y, looked_at, mask=mask)[0])  # (B, 1, E)

        return self.feed_forward_residual(x, self.feed_forward)

    def look(
        self,
        x: Float[Tensor, "R T E"],
        source: Tensor | None,
        mask: Mask | None,
        state: KeyValueCache | PackedBatch | None,
    ) -> Float[Tensor, "R T E"]:
        """Cross-attention. Rows that share a source ask it together, one after the other: no copies
        of its keys.
        """
        assert self.cross_attention is not None
        together = (
            x
            if source is None or len(source) in (0, len(x))
            else x.unflatten(0, (len(source), -1)).flatten(1, 2)
        )
        return self.cross_attention(together, source, mask=mask, state=state)[0].view_as(x)


def fusable(block: Block) -> bool:
    """True if the block and its parts are unchanged modules of the classes that `one_row` computes
    in their place.
    """
    attention, forward = block.attention, block.feed_forward
    residuals = (block.attention_residual, block.feed_forward_residual)
    if not unchanged(block, Block) or not all(unchanged(each, Residual) for each in residuals):
        return False
    if not unchanged(attention, MultiHeadAttention) or not unchanged(forward, FeedForward):
        return False
    if forward.activation not in decode_block.ACTIVATIONS:
        return False

    layers = (attention.qkv, attention.output, forward.up, forward.down)
    norms, dropouts = ([getattr(each, name) for each in residuals] for name in ("norm", "dropout"))

    return (
        all(unchanged(each, Linear) for each in layers)
        and all(unchanged(each, LayerNorm, RMSNorm) for each in norms)
        and all(unchanged(each, nn.Dropout) for each in dropouts)
    )


class Stack(nn.Module):
    """Blocks on top of each other, with what they share: rotary angles, ALiBi's slopes, the last
    norm.
    """

    def __init__(
        self, config: StackConfig, *, depth: int | None = None, cross: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            Block(config, layer, cross=cross) for layer in range(depth or config.depth)
        )
        self.norm = (
            norm(config.norm, config.width, config.norm_epsilon) if config.ends_with_norm else None
        )
        self.hooks = HookPoints("output")

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        positions: Int[Tensor, "#B T"],
        *,
        mask: Mask | None = None,
        source: Float[Tensor, "N S E"] | None = None,
        source_mask: Mask | None = None,
        state: KeyValueCache
        | SegmentMemory
        | DecoderState
        | PackedBatch
        | PackedDecoderBatch
        | None = None,
        first: bool = False,
    ) -> Float[Tensor, "B W E"]:
        """Every word (W = T), or with `first` only the first one (W = 1), for which alone the last
        block is done.
        """
        config = self.config
        rotary = bias = None
        if config.position == "rotary":
            rotary = rotary_angles(
                positions, config.width_of_head, config.rotary_base, config.rotary_scaling
            )
        elif config.position == "alibi":
            bias = Distance(alibi_slopes(config.heads, x.device))

        *lower, last = self.blocks

        for block in lower:
            x = block(
                x,
                mask=mask,
                bias=bias,
                rotary=rotary,
                source=source,
                source_mask=source_mask,
                state=state,
            )

        if first and self.first_serves(mask):
            x = last(x, mask=mask, first=True)  # (B, 1, E)
        else:
            x = last(
                x,
                mask=mask,
                bias=bias,
                rotary=rotary,
                source=source,
                source_mask=source_mask,
                state=state,
            )

            x = x[:, :1] if first else x

        return self.hooks("output", x if self.norm is None else self.norm(x))

    def first_serves(self, mask: Mask | None) -> bool:
        """Where it does not matter at which position a query stands, and nobody listens to the
        other words.
        """
        placed = self.config.position in ("rotary", "alibi", "relative")
        if placed or not (mask is None or type(mask) is Padding) or has_hooks(self.blocks[-1]):
            return False

        return torch.compiler.is_compiling() or all_unchanged(self.blocks[-1])
