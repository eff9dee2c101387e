"""Ids to vectors: the word, joined with its position, and in BERT with the sentence it is from."""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.hooks import HookPoints
from qkv.nn.norm import LayerNorm
from qkv.nn.position import Learned, Sinusoidal, join
from qkv.nn.stack_config import Join, Position, Sinusoid


class Embedding(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        context: int,
        position: Position = "learned",
        join: Join = "sum",
        position_width: int | None = None,
        sinusoid: Sinusoid = "interleaved",
        segments: int = 0,
        scaled: bool = False,
        norm_epsilon: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        joined = position in ("learned", "sinusoidal")
        beside = (position_width or width // 2) if joined and join == "concatenate" else 0
        if not 0 <= beside < width:
            raise ValueError(f"position_width: expected less than width {width}, not {beside}")

        self.context, self.join = context, join
        self.scale = math.sqrt(width) if scaled else 1.0
        self.token = nn.Embedding(vocabulary, width - beside)
        self.position: Learned | Sinusoidal | None = None
        if position == "learned":
            self.position = Learned(context, beside or width)
        elif position == "sinusoidal":
            self.position = Sinusoidal(beside or width, sinusoid)

        self.segment = nn.Embedding(segments, width) if segments else None
        self.norm = None if norm_epsilon is None else LayerNorm(width, norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.hooks = HookPoints("output")

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        positions: Int[Tensor, "#B T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        x = self.token(ids)  # (B, T, E), or narrower when the position is put beside it
        if self.scale != 1.0:
            x = x * self.scale

        if self.position is not None:
            x = join(x, self.position(positions).to(x.dtype), self.join)

        if self.segment is not None:
            x = x + self.segment(ids.new_zeros(ids.shape) if segments is None else segments)

        if self.norm is not None:
            x = self.norm(x)

        return self.hooks("output", self.dropout(x))
