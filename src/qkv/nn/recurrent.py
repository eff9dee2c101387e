"""The recurrent layer before attention: one hidden vector carries all that was read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.nn.stack_config import Cell

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
Hidden = tuple[Tensor, ...]  # (h,), or (h, c) for an LSTM; each (L, B, E)


class Recurrent(nn.Module):
    """PyTorch's fused RNN, LSTM or GRU, with its state always a tuple."""

    def __init__(
        self,
        cell: Cell,
        input_width: int,
        width: int,
        depth: int,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if bidirectional and width % 2:
            raise ValueError(f"width: expected an even number for two directions, not {width}")

        self.bidirectional = bidirectional
        self.cells = CELLS[cell](
            input_width,
            width // 2 if bidirectional else width,  # both directions together are `width` wide
            depth,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if depth > 1 else 0.0,
        )

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        hidden: Hidden | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T E"], Hidden]:
        """Outputs at every position, and the state after the last; with `lengths`, after the last
        real one.
        """
        first = hidden if hidden is None or len(hidden) > 1 else hidden[0]
        if lengths is None:
            outputs, last = self.cells(x, first)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            outputs, last = self.cells(packed, first)
            outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])

        return outputs, tuple(map(self.one_direction, last if isinstance(last, tuple) else (last,)))

    def one_direction(self, hidden: Float[Tensor, "M B W"]) -> Float[Tensor, "L B E"]:
        """Forward and backward states side by side: (2 L, B, E / 2) -> (L, B, E)."""
        if not self.bidirectional:
            return hidden

        return torch.cat([hidden[0::2], hidden[1::2]], dim=-1)
