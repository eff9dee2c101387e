"""Multi-head attention: several small attentions side by side, each free to look for something
else.

kv_heads = heads      multi-head       q q q q q q q q        every query head has its own
                                       k k k k k k k k        key and value head
1 < kv_heads < heads  grouped-query    q q q q q q q q        a group of query heads shares one
                                        \\_|   |_/ ...
kv_heads = 1          multi-query      q q q q q q q q        all of them share one
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.attend import attend
from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Mask, all_of, as_mask
from qkv.nn.attention.relative import RelativePosition
from qkv.nn.cache import KeyValueCache, PackedBatch, SegmentMemory
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear
from qkv.nn.position import rotate
from qkv.nn.stack_config import check_heads
from qkv.nn.unchanged import fused, unchanged


@fused
class MultiHeadAttention(nn.Module):
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
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width or width // heads
        self.dropout, self.layer = dropout, layer
        # One matrix makes queries, keys and values: the rows of Q first, then K, then V.
        self.qkv = Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=qkv_bias)
        self.output = Linear(heads * self.head_width, width, bias=output_bias)
        self.relative = RelativePosition(width, heads, self.head_width) if relative else None
        self.hooks = HookPoints("query", "key", "value", "scores", "weights", "heads")

    def forward(
        self,
        x: Float[Tensor, "B T E"],
        source: Float[Tensor, "B S E"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Bias | Tensor | None = None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
        state: KeyValueCache | SegmentMemory | PackedBatch | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B H T S"] | None]:
        """Self-attention, or cross-attention to `source`. `state` remembers keys and values of
        earlier calls.
        """
        if x.dim() != 3:
            raise ValueError(f"x: expected shape (B, T, E), not {tuple(x.shape)}")
        if x.shape[-1] != self.qkv.in_features:
            raise ValueError(
                f"width: expected x of width {self.qkv.in_features}, not {x.shape[-1]}"
            )
        if source is not None and source.shape[-1] != self.qkv.in_features:
            raise ValueError(
                f"width: expected a source of width {self.qkv.in_features}, not {source.shape[-1]}"
            )

        if isinstance(state, PackedBatch):
            heads, weights = self.of_several(x, mask, bias, rotary, state), None
        else:
            query, key, value = self.project(
                x, source, rotary, state
            )  # (B, H, T, D), (B, K, S, D), (B, K, S, D)
            query, key, value = (
                self.hooks("query", query),
                self.hooks("key", key),
                self.hooks("value", value),
            )
            heads, weights = self.look(query, key, value, mask, bias, need_weights)

        heads = self.hooks("heads", heads)  # (B, H, T, D)

        return self.output(heads.transpose(1, 2).flatten(2)), weights  # (B, T, E)

    def look(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B K S D"],
        value: Float[Tensor, "B K S D"],
        mask: Mask | Tensor | None,
        bias: Bias | Tensor | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T S"] | None]:
        """What each query finds."""
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
            on_scores=self.hooks.heard("scores"),
            on_weights=self.hooks.heard("weights"),
        )

    def of_several(
        self,
        x: Float[Tensor, "1 N E"],
        mask: Mask | Tensor | None,
        bias: Bias | Tensor | None,
        rotary: Tensor | None,
        turn: PackedBatch,
    ) -> Float[Tensor, "1 H N D"]:
        """New words of several texts, one after the other: each looks at its own text, or at its
        own source.
        """
        key = value = None
        if turn.places is None:
            (query,) = self.split(self.qkv(x, slice(0, self.heads * self.head_width)), self.heads)
        else:
            query, key, value = self.project(x, None, rotary, None)
            key, value = self.hooks("key", key), self.hooks("value", value)

        query = self.hooks("query", query)
        known = None if mask is None else as_mask(mask)

        def attend_to(query: Tensor, key: Tensor, value: Tensor, padding: Mask | None) -> Tensor:
            return self.look(query, key, value, all_of(known, padding), bias)[0]

        causal = known is None or isinstance(known, Causal)
        heard = self.hooks.heard("scores") or self.hooks.heard("weights")
        plain = causal and bias is None and self.relative is None and not heard
        # Pages are read by a kernel of their own, in place of `look`.
        plain = plain and unchanged(self, MultiHeadAttention)

        return turn.look(self.layer, query, key, value, attend_to, plain=plain)

    def project(
        self,
        x: Tensor,
        source: Tensor | None,
        rotary: Tensor | None,
        state: KeyValueCache | SegmentMemory | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(state, SegmentMemory):
            source = state.append(self.layer, x)  # (B, S, E): the remembered segment, then this one
            state = None

        if source is None:
            query, key, value = self.split(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
        else:
            rows = self.heads * self.head_width
            (query,) = self.split(self.qkv(x, slice(0, rows)), self.heads)
            if state is not None and self.layer in state:
                return query, *state.read(self.layer)  # a source is projected once

            key, value = self.keys_and_values(source)

        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)

        if state is not None:
            key, value = state.append(self.layer, key, value)

        return query, key, value

    def keys_and_values(self, source: Float[Tensor, "B S E"]) -> tuple[Tensor, Tensor]:
        """What is looked at of a source: (B, K, S, D) each."""
        rows = self.heads * self.head_width
        key, value = self.split(self.qkv(source, slice(rows, None)), self.kv_heads, self.kv_heads)
        return key, value

    def split(self, x: Float[Tensor, "B L R"], *heads: int) -> tuple[Tensor, ...]:
        """(B, L, rows) into (B, heads, L, D) for each count of heads asked for."""
        parts = x.split([count * self.head_width for count in heads], dim=-1)
        return tuple(part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)


def group_heads(attention: MultiHeadAttention, kv_heads: int) -> MultiHeadAttention:
    """The same attention with fewer key and value heads: each is the mean of a group of the old
    ones.
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
            key, value = (x.unflatten(0, (kv_heads, -1)).mean(1) for x in (key, value))
            weights[name] = torch.cat([query, key, value]).flatten(0, 1)

    new.load_state_dict(weights)

    return new.train(old.training)
