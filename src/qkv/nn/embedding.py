"""Embeddings: token ids to vectors, joined with their positions and, in BERT, their segments."""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.hooks import HookPoints
from qkv.nn.norm import LayerNorm
from qkv.nn.position import Learned, Sinusoidal, join
from qkv.nn.stack_config import Join, Position, Sinusoid


class Embedding(nn.Module):
    """Token embedding and, unless attention adds them, positions.

    Args:
        vocabulary: Number of tokens V.
        width: Model width E.
        context: Positions of the longest sequence, which learned positions need to know.
        position: Learned and sinusoidal positions are added here; others belong to attention.
        join: How token and position become one vector.
        position_width: With concatenation, the width of the position; by default E / 2.
        sinusoid: Order of sines and cosines.
        segments: Number of segments of BERT, 0 for none.
        scaled: Multiply token embeddings by sqrt(E), as the first Transformer does.
        norm_epsilon: With a number, a layer norm follows, as in BERT.
        dropout: Probability to drop a number in training.

    Raises:
        ValueError: If the position is as wide as the whole embedding.

    Example:
        >>> import torch
        >>> embedding = Embedding(100, 8, context=16)
        >>> embedding(torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 8])
    """

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
        beside = 0  # width of a position that is concatenated
        if position in ("learned", "sinusoidal") and join == "concatenate":
            beside = position_width or width // 2

        if not 0 <= beside < width:
            raise ValueError(f"position_width: expected less than width {width}, not {beside}")

        self.context = context
        self.join = join
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
        """The vectors of tokens at the given positions; without `segments` all are in segment 0."""
        x = self.token(ids)  # (B, T, E), or narrower if the position is concatenated
        if self.scale != 1.0:
            x = x * self.scale

        if self.position is not None:
            x = join(x, self.position(positions).to(x.dtype), self.join)

        if self.segment is not None:
            if segments is None:
                segments = ids.new_zeros(ids.shape)

            x = x + self.segment(segments)

        if self.norm is not None:
            x = self.norm(x)

        return self.hooks("output", self.dropout(x))
