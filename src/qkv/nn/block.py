"""The Transformer block (attention and feed-forward, each with residual and norm), and a stack."""

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
from qkv.nn.hooks import TRANSFORMER_LENS, HookPoints, has_hooks
from qkv.nn.norm import norm
from qkv.nn.position import alibi_slopes, rotary_angles
from qkv.nn.stack_config import StackConfig
from qkv.nn.unchanged import all_unchanged, fused

State = KeyValueCache | SegmentMemory | DecoderState | PackedBatch | PackedDecoderBatch
"""What a forward pass continues from, and appends to."""


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
        self.cross_attention: MultiHeadAttention | None = None
        self.cross_attention_residual: Residual | None = None
        if cross:
            self.cross_attention = attention_of(config, layer, relative=False)
            self.cross_attention_residual = Residual(config)

        self.feed_forward = FeedForward(
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
        source: Float[Tensor, "N S E"] | None = None,
        source_mask: Mask | None = None,
        state: State | None = None,
        first: bool = False,
    ) -> Float[Tensor, "B W E"]:
        """The residual stream after this block, of every token (W = T).

        Args:
            x: The residual stream before it.
            mask: Which positions each token may attend to.
            bias: Numbers added to the scores of self-attention.
            rotary: Cosines and sines of rotary positions.
            source: What cross-attention attends to.
            source_mask: Which positions of the source it may attend to.
            state: Keys and values of earlier calls.
            first: Compute only the first token (W = 1), as a classifier needs it.
        """
        if first:
            return self.first_token(x, mask)

        if isinstance(state, StaticCache):
            for decode_path in decode_paths:
                output = decode_path(self, x, rotary, state)
                if output is not None:
                    return output

        target_state, source_state = split_state(state)

        def attention(y: Tensor) -> Tensor:
            return self.attention(y, mask=mask, bias=bias, rotary=rotary, state=target_state)[0]

        def cross_attention(y: Tensor) -> Tensor:
            return self.attend_to_source(y, source, source_mask, source_state)

        x = self.hooks("before", x)
        x = self.attention_residual(x, attention)
        if self.cross_attention_residual is not None:
            x = self.cross_attention_residual(x, cross_attention)

        x = self.hooks("between", x)
        x = self.feed_forward_residual(x, self.feed_forward)

        return self.hooks("after", x)

    def first_token(self, x: Float[Tensor, "B T E"], mask: Mask | None) -> Float[Tensor, "B 1 E"]:
        """The first token alone, which attends to all others: what the last block has to do."""
        residual = self.attention_residual
        keys = residual.norm(x) if residual.before else x
        x = residual(x[:, :1], lambda y: self.attention(y, keys, mask=mask)[0])  # (B, 1, E)

        return self.feed_forward_residual(x, self.feed_forward)

    def attend_to_source(
        self,
        x: Float[Tensor, "R T E"],
        source: Tensor | None,
        mask: Mask | None,
        state: KeyValueCache | PackedBatch | None,
    ) -> Float[Tensor, "R T E"]:
        """Cross-attention. Rows that share a source become one row, so its keys are not copied."""
        assert self.cross_attention is not None
        shared = x
        if source is not None and len(source) not in (0, len(x)):
            shared = x.unflatten(0, (len(source), -1)).flatten(1, 2)

        output, _ = self.cross_attention(shared, source, mask=mask, state=state)
        return output.view_as(x)


def attention_of(config: StackConfig, layer: int, *, relative: bool) -> MultiHeadAttention:
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


def split_state(
    state: State | None,
) -> tuple[KeyValueCache | SegmentMemory | PackedBatch | None, KeyValueCache | PackedBatch | None]:
    """The states of self-attention and of cross-attention."""
    if isinstance(state, DecoderState | PackedDecoderBatch):
        return state.target, state.source

    return state, None


DecodePath = Callable[[Block, Tensor, Tensor | None, StaticCache], Tensor | None]
"""Computes `Block.forward` for a step with a `StaticCache`, or returns None if it cannot."""
decode_paths: list[DecodePath] = []


def install_decode_path(path: DecodePath) -> None:
    """Let blocks try a faster path, which gives the same numbers, before their own `forward`."""
    if path not in decode_paths:
        decode_paths.append(path)


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
        layers = range(depth or config.depth)
        self.blocks = nn.ModuleList(Block(config, layer, cross=cross) for layer in layers)
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
        source: Float[Tensor, "N S E"] | None = None,
        source_mask: Mask | None = None,
        state: State | None = None,
        first: bool = False,
    ) -> Float[Tensor, "B W E"]:
        """The output of the last block, and the last norm, for every token (W = T).

        Args:
            x: Embeddings.
            positions: The position of each token, for rotary positions.
            mask: Which positions each token may attend to.
            source: What cross-attention attends to.
            source_mask: Which positions of the source it may attend to.
            state: Keys and values of earlier calls.
            first: Return only the first token (W = 1), for which alone the last block is computed.
        """
        rotary, bias = self.shared_positions(positions, x.device)
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

        if first and self.can_skip_others(mask):
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

        if self.norm is not None:
            x = self.norm(x)

        return self.hooks("output", x)

    def shared_positions(
        self, positions: Int[Tensor, "#B T"], device: torch.device
    ) -> tuple[Tensor | None, Bias | None]:
        """Rotary angles or ALiBi's bias, which are the same for all blocks."""
        config = self.config
        if config.position == "rotary":
            angles = rotary_angles(
                positions, config.width_of_head, config.rotary_base, config.rotary_scaling
            )
            return angles, None
        if config.position == "alibi":
            return None, Distance(alibi_slopes(config.heads, device))

        return None, None

    def can_skip_others(self, mask: Mask | None) -> bool:
        """True if the last block may compute the first token alone.

        Its attention must not depend on a query's position, and no hook may need other tokens.
        """
        if self.config.position in ("rotary", "alibi", "relative"):
            return False
        if mask is not None and type(mask) is not Padding:
            return False
        if has_hooks(self.blocks[-1]):
            return False

        return torch.compiler.is_compiling() or all_unchanged(self.blocks[-1])
