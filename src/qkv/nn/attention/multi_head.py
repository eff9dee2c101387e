"""Multi-head attention (MHA), with shared key and value heads (GQA, MQA) where there are fewer.

kv_heads = heads      multi-head       q q q q q q q q        each query head has its own
                                       k k k k k k k k        key and value head
1 < kv_heads < heads  grouped-query    q q q q q q q q        a group of query heads shares one
                                        \\_|   |_/ ...
kv_heads = 1          multi-query      q q q q q q q q        all query heads share one
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.attend import attend
from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Mask, all_of, as_mask
from qkv.nn.attention.relative import RelativePosition
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.hooks import TRANSFORMER_LENS, HookPoints
from qkv.nn.linear.linear import Linear
from qkv.nn.position import rotate
from qkv.nn.stack_config import check_heads
from qkv.nn.unchanged import fused, unchanged


@fused
class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own D = E / H dimensions.

    Args:
        width: Model width E.
        heads: Query heads H.
        kv_heads: Key and value heads K, which divide H; by default H.
        head_width: Width D of a head; by default E / H.
        qkv_bias: Biases of the query, key and value projections.
        output_bias: Bias of the output projection.
        dropout: Probability to drop an attention weight in training.
        relative: Transformer-XL's relative positions.
        layer: Number of the layer, under which it stores keys and values in a cache.

    Raises:
        ValueError: If the heads do not divide the width, or the key heads the heads.

    Example:
        >>> import torch
        >>> from qkv.nn.attention import Causal
        >>> attention = MultiHeadAttention(8, heads=4, kv_heads=2)
        >>> output, weights = attention(torch.zeros(1, 3, 8), mask=Causal(), need_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([1, 3, 8]), torch.Size([1, 4, 3, 3]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        qkv_bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        relative: bool = False,
        layer: int = 0,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads, head_width)
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_width = head_width or width // heads
        self.dropout = dropout
        self.layer = layer

        # One matrix projects to queries, keys and values: the rows of Q first, then K, then V.
        self.qkv = Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=qkv_bias)
        self.output = Linear(heads * self.head_width, width, bias=output_bias)
        self.relative = RelativePosition(width, heads, self.head_width) if relative else None
        names = ("query", "key", "value", "scores", "weights", "heads")
        self.hooks = HookPoints(*names, aliases=TRANSFORMER_LENS)

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        source: Float[Tensor, "B S E"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Bias | Tensor | None = None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
        state: Cache | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B H T S"] | None]:
        """Self-attention, or cross-attention to `source`.

        Args:
            x: Where the queries come from, and without a source the keys and values.
            source: Where keys and values come from in cross-attention; a state may have it, too.
            mask: Which keys each query may attend to.
            bias: Numbers added to the scores.
            rotary: Cosines and sines of rotary positions.
            state: Keys and values of earlier calls, to which this call appends its own.
            need_weights: Return the weights, too.

        Returns:
            The output, and the weights (None without `need_weights`).

        Raises:
            ValueError: If the shape of x or of the source is wrong.
        """
        self.check_input(x, source)
        state = state or NO_STATE
        mask = None if mask is None else as_mask(mask)
        if source is None:
            source = state.encoded

        query, key, value = self.project(x, source, rotary, state)
        query = self.hooks("query", query)  # (B, H, T, D)
        key = self.hooks("key", key)  # (B, K, S, D)
        value = self.hooks("value", value)  # (B, K, S, D)

        def attend(
            query: Tensor, key: Tensor, value: Tensor, padding: Mask | None
        ) -> tuple[Tensor, Tensor | None]:
            visible = all_of(mask, padding)
            result: Any = self.attend(query, key, value, visible, bias, need_weights)
            if not isinstance(result, tuple):
                name = type(self).__name__
                raise TypeError(f"{name}.attend: expected (output, weights or None), not a tensor")

            return result

        def plain() -> bool:
            return bias is None and (mask is None or type(mask) is Causal) and self.is_plain()

        heads, weights = state.attend(self.layer, query, key, value, attend, plain=plain)
        heads = self.hooks("heads", heads)  # (B, H, T, D)

        return self.output(heads.transpose(1, 2).flatten(2)), weights  # (B, T, E)

    def check_input(self, x: Tensor, source: Tensor | None) -> None:
        width = self.qkv.in_features
        if x.dim() != 3:
            raise ValueError(f"x: expected shape (B, T, E), not {tuple(x.shape)}")
        if x.shape[-1] != width:
            raise ValueError(f"width: expected x of width {width}, not {x.shape[-1]}")
        if source is not None and source.shape[-1] != width:
            raise ValueError(f"width: expected a source of width {width}, not {source.shape[-1]}")

    def project(
        self, x: Tensor, source: Tensor | None, rotary: Tensor | None, state: Cache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, and the keys and values of this and earlier calls."""

        def compute() -> tuple[Tensor, Tensor]:
            assert source is not None
            return self.keys_and_values(source)

        if source is not None or state.is_source:
            return self.queries(x), *state.source_keys(self.layer, compute)

        past = state.extend(self.layer, x)
        if past is None:
            query, key, value = self.split(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
        else:
            query = self.queries(x)
            key, value = self.keys_and_values(past)

        if rotary is not None:
            query = rotate(query, rotary)
            key = rotate(key, rotary)

        return query, *state.append(self.layer, key, value)

    def queries(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B H T D"]:
        rows = slice(0, self.heads * self.head_width)
        (query,) = self.split(self.qkv(x, rows), self.heads)
        return query

    def keys_and_values(self, source: Float[Tensor, "B S E"]) -> tuple[Tensor, Tensor]:
        """The keys and the values of a source: (B, K, S, D) each."""
        rows = slice(self.heads * self.head_width, None)
        key, value = self.split(self.qkv(source, rows), self.kv_heads, self.kv_heads)
        return key, value

    def split(self, x: Float[Tensor, "B L R"], *heads: int) -> tuple[Tensor, ...]:
        """(B, L, R) into one (B, heads, L, D) for each count of heads."""
        parts = x.split([count * self.head_width for count in heads], dim=-1)
        return tuple(part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)

    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B K S D"],
        value: Float[Tensor, "B K S D"],
        mask: Mask | Tensor | None,
        bias: Bias | Tensor | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T S"] | None]:
        """The equation, with this layer's relative positions, dropout and hooks."""
        if self.relative is not None:
            query, bias = self.relative(query, key.shape[2])

        return attend(
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            need_weights=need_weights,
            dropout=self.dropout if self.training else 0.0,
            on_scores=self.hooks.callback("scores"),
            on_weights=self.hooks.callback("weights"),
        )

    def is_plain(self) -> bool:
        """True if a kernel may replace `attend`: nothing is changed, added or hooked there."""
        if self.relative is not None or not unchanged(self, MultiHeadAttention):
            return False

        return not (self.hooks.callback("scores") or self.hooks.callback("weights"))


def group_heads(attention: MultiHeadAttention, kv_heads: int) -> MultiHeadAttention:
    """The same attention with fewer key and value heads: each is the mean of a group.

    Args:
        attention: Multi-head or grouped-query attention without adapters.
        kv_heads: The new number of key and value heads, a divisor of the old one.

    Returns:
        A new module; the old one is unchanged.

    Raises:
        ValueError: If `kv_heads` does not divide the heads, or the attention has adapters.
    """
    old = attention
    if kv_heads < 1 or old.kv_heads % kv_heads:
        raise ValueError(
            f"kv_heads: expected a divisor of the present {old.kv_heads}, not {kv_heads}"
        )
    if old.qkv.adapters is not None or old.output.adapters is not None:
        raise ValueError("kv_heads: the model has adapters; merge or detach them first")

    new = MultiHeadAttention(
        old.qkv.in_features,
        old.heads,
        kv_heads=kv_heads,
        head_width=old.head_width,
        qkv_bias=old.qkv.bias is not None,
        output_bias=old.output.bias is not None,
        dropout=old.dropout,
        relative=old.relative is not None,
        layer=old.layer,
    ).to(old.qkv.weight)

    weights = dict(old.state_dict())
    for name in ("qkv.weight", "qkv.bias"):
        if name in weights:
            by_head = weights[name].unflatten(0, (-1, old.head_width))  # (H + 2K, D, ...)
            query, key, value = by_head.split([old.heads, old.kv_heads, old.kv_heads])
            key = key.unflatten(0, (kv_heads, -1)).mean(1)
            value = value.unflatten(0, (kv_heads, -1)).mean(1)
            weights[name] = torch.cat([query, key, value]).flatten(0, 1)

    new.load_state_dict(weights)

    return new.train(old.training)
