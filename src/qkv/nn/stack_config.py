"""Configs of nn's modules: choices as types, sizes as fields of frozen dataclasses.

Nothing here imports torch, so that the command line starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qkv.nn.config import (
    check_above_zero,
    check_at_least_one,
    check_fields,
    check_probability,
    documented,
)

if TYPE_CHECKING:
    from qkv.nn.attention.mask import Mask

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "relu2"]
Norm = Literal["layer", "rms"]
NormPlacement = Literal["before", "after"]
Position = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
Join = Literal["sum", "product", "concatenate"]
Sinusoid = Literal["interleaved", "halves"]
Sparse = Literal["none", "strided", "fixed"]
Cell = Literal["rnn", "lstm", "gru"]
Projection = Literal["query", "key", "value", "output", "gate", "up", "down"]


@documented
@dataclass(frozen=True)
class RotaryScaling:
    """RoPE scaling: rotary positions stretched to a longer context, as Llama 3.1 does it.

    Example:
        >>> RotaryScaling(factor=32.0).original_context
        8192
    """

    factor: float = 8.0
    """Low frequencies are divided by this factor."""
    low: float = 1.0
    """A frequency with fewer turns than this within the original context is low."""
    high: float = 4.0
    """A frequency with more turns than this within the original context is not changed."""
    original_context: int = 8192
    """The context before stretching."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_above_zero(self, "factor", "low", "high", "original_context")
        if self.low >= self.high:
            raise ValueError(f"low: expected less than high = {self.high}, not {self.low}")


@documented
@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A stack of blocks; every model's config begins with these fields.

    Example:
        >>> StackConfig(width=64, heads=4).width_of_head
        16
    """

    width: int = 512
    """Model width: numbers in the vector of a token (E)."""
    depth: int = 6
    """Blocks on top of each other."""
    heads: int = 8
    """Attention heads (H)."""
    kv_heads: int | None = None
    """Key and value heads (K); by default as many as heads. 1 is multi-query attention, a number
    between them grouped-query attention."""
    head_width: int | None = None
    """Numbers in a head (D); by default width / heads."""
    hidden: int | None = None
    """Width of the feed-forward layer (F); by default four times the width."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layer."""
    norm: Norm = "layer"
    """Layer norm or RMS norm."""
    norm_placement: NormPlacement = "before"
    """Norm before each sublayer, or after its residual as in the first Transformer."""
    norm_epsilon: float = 1e-5
    """Added to the variance."""
    final_norm: bool | None = None
    """A norm after the last block: by default when norms come before the sublayers."""
    position: Position = "learned"
    """How the model knows the order of tokens."""
    rotary_base: float = 10000.0
    """Rotary positions: the lowest frequency turns once in about this many positions times 2 pi."""
    rotary_scaling: RotaryScaling | None = None
    """Rotary positions stretched to a longer context, as Llama 3.1 does it."""
    window: int | None = None
    """Sliding-window attention: with a window of W a token sees itself and the W - 1 tokens before
    it (if not causal, also the W - 1 after it); by default it sees all of them."""
    sparse: Sparse = "none"
    """The Sparse Transformer's patterns: strided, or fixed."""
    stride: int | None = None
    """With sparse: the pattern's stride, about the square root of the context."""
    qkv_bias: bool = True
    """Biases of the query, key and value projections."""
    output_bias: bool = True
    """Bias of attention's output projection."""
    feed_forward_bias: bool = True
    """Biases of the feed-forward layers."""
    dropout: float = 0.0
    """Probability to drop a number of a sublayer's output, or of the embedding, in training."""
    attention_dropout: float = 0.0
    """Probability to drop an attention weight in training."""
    attention: str | None = None
    """Attention of one's own, as FILE.py:CLASS or by a registered name (nn/own_parts.py)."""
    feed_forward: str | None = None
    """A feed-forward layer of one's own, named in the same way."""
    position_encoding: str | None = None
    """Positions of one's own, named in the same way; `position` is then none."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least_one(
            self, "width", "depth", "heads", "kv_heads", "head_width", "hidden", "window", "stride"
        )
        check_probability(self, "dropout", "attention_dropout")
        check_above_zero(self, "norm_epsilon", "rotary_base")
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        check_heads(self.width, self.heads, kv_heads, self.head_width)

        if self.position == "rotary" and self.width_of_head % 2:
            raise ValueError(
                "head_width: rotary positions turn pairs, so expected an even number, "
                f"not {self.width_of_head}"
            )

        if self.position_encoding is not None and self.position != "none":
            raise ValueError(f"position_encoding: expected position = none, not {self.position}")

        if self.sparse == "none" and self.stride is not None:
            raise ValueError("stride: sparse = none expects none")
        if self.sparse != "none" and self.stride is None:
            raise ValueError(f"stride: sparse = {self.sparse} expects a stride")

    def sparsity(self) -> Mask | None:
        """The mask of `window` and `sparse`; None for dense attention."""
        from qkv.nn.attention import Fixed, Strided, Window, all_of

        window = None if self.window is None else Window(self.window)
        if self.stride is None:
            return window
        if self.sparse == "strided":
            return all_of(window, Strided(self.stride))

        return all_of(window, Fixed(self.stride))

    @property
    def width_of_head(self) -> int:
        """D."""
        return self.head_width or self.width // self.heads

    @property
    def width_of_hidden(self) -> int:
        """F."""
        return self.hidden or 4 * self.width

    @property
    def ends_with_norm(self) -> bool:
        """Whether a norm follows the last block."""
        if self.final_norm is None:
            return self.norm_placement == "before"

        return self.final_norm


def check_heads(width: int, heads: int, kv_heads: int, head_width: int | None) -> None:
    """Raise unless heads divide the width, and key heads the heads."""
    if heads < 1:
        raise ValueError(f"heads: expected 1 or more, not {heads}")
    if head_width is not None and head_width < 1:
        raise ValueError(f"head_width: expected 1 or more, not {head_width}")
    if head_width is None and width % heads:
        raise ValueError(
            f"heads: {heads} heads do not divide width {width}; choose a divisor or give head_width"
        )
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads: expected a divisor of heads = {heads}, not {kv_heads}")


@documented
@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Low-rank adapters (LoRA): their size, and the projections that have one.

    Example:
        >>> AdapterConfig(rank=4, projections=("query", "value")).alpha
        16.0
    """

    rank: int = 8
    """Rank of the change: the rows of A."""
    alpha: float = 16.0
    """The change is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Probability to drop a number of an adapter's input in training."""
    projections: tuple[Projection, ...] = ("query", "key", "value", "output")
    """The adapted projections: query, key, value and output of attention; gate, up and down of
    the feed-forward layer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "projections", tuple(self.projections))
        check_fields(self)
        check_at_least_one(self, "rank")
        check_above_zero(self, "alpha")
        check_probability(self, "dropout")
        if not self.projections or len(set(self.projections)) < len(self.projections):
            raise ValueError(
                f"projections: expected one or more, each once, not {self.projections!r}"
            )
