"""What nn's modules can be made of: choices as types, sizes as fields of frozen dataclasses.

Nothing here imports torch, so that the command line can list every choice at once.
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
    """How a rotary model trained on short texts is stretched to longer ones, as Llama 3.1 does it."""

    factor: float = 8.0
    """Slow waves turn this many times slower."""
    low: float = 1.0
    """A wave that turns fewer times than this within the original context is slow."""
    high: float = 4.0
    """A wave that turns more times than this within the original context stays as it is."""
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
    """What a stack of blocks is made of; every model's own config begins with these fields."""

    width: int = 512
    """Numbers in the vector of a word (E)."""
    depth: int = 6
    """Blocks on top of each other."""
    heads: int = 8
    """Attention heads (H)."""
    kv_heads: int | None = None
    """Key and value heads (K): as many as heads unless given; 1 is multi-query, between is
    grouped-query.
    """
    head_width: int | None = None
    """Numbers in a head (D): width / heads unless given."""
    hidden: int | None = None
    """Width of the feed-forward layer (F): four times the width unless given."""
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
    """How the model knows the order of words."""
    rotary_base: float = 10000.0
    """Rotary positions: the slowest wave turns once in about this many positions times 2 pi."""
    rotary_scaling: RotaryScaling | None = None
    """Rotary positions stretched to longer texts, as Llama 3.1 does it."""
    window: int | None = None
    """Sliding-window attention: with a window of W a token sees itself and the W - 1 tokens before
    it (if not causal, also the W - 1 after it); all of them unless given."""
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

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least_one(
            self, "width", "depth", "heads", "kv_heads", "head_width", "hidden", "window", "stride"
        )
        check_probability(self, "dropout", "attention_dropout")
        check_above_zero(self, "norm_epsilon", "rotary_base")
        check_heads(
            self.width,
            self.heads,
            self.heads if self.kv_heads is None else self.kv_heads,
            self.head_width,
        )

        if self.position == "rotary" and self.width_of_head % 2:
            raise ValueError(
                f"head_width: rotary positions turn pairs, so expected an even number, not {self.width_of_head}"
            )

        if (self.sparse == "none") != (self.stride is None):
            raise ValueError(
                f"stride: sparse = {self.sparse} expects {'none' if self.sparse == 'none' else 'a stride'}"
            )

    def sparsity(self) -> Mask | None:
        """What window and sparse rule out."""
        from qkv.nn.attention.mask import Fixed, Strided, Window, all_of

        window = None if self.window is None else Window(self.window)
        if self.stride is None:
            return window

        return all_of(
            window, Strided(self.stride) if self.sparse == "strided" else Fixed(self.stride)
        )

    @property
    def width_of_head(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def width_of_hidden(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def ends_with_norm(self) -> bool:
        return self.norm_placement == "before" if self.final_norm is None else self.final_norm


def check_heads(width: int, heads: int, kv_heads: int, head_width: int | None) -> None:
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
    """Low-rank adapters (LoRA): their size, and the matrices that have one."""

    rank: int = 8
    """How many directions a change may have: the rows of A."""
    alpha: float = 16.0
    """The change is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Probability to drop a number of what an adapter reads, in training."""
    projections: tuple[Projection, ...] = ("query", "key", "value", "output")
    """Which matrices are adapted: query, key, value and output of attention; gate, up and down of
    the feed-forward.
    """

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
