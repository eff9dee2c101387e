"""Recurrent layers: RNN, LSTM and GRU, whose hidden vector carries all that was read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.nn.stack_config import Cell

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
Hidden = tuple[Tensor, ...]
"""(h,), or (h, c) for an LSTM; each (L, B, E)."""


class Recurrent(nn.Module):
    """PyTorch's RNN, LSTM or GRU, with its state always a tuple.

    Args:
        cell: rnn, lstm or gru.
        input_width: Width I of the input.
        width: Width E of the output; with two directions, of both together.
        depth: Number of layers L.
        bidirectional: Read in both directions.
        dropout: Probability to drop a number between layers in training.

    Raises:
        ValueError: If the width is odd with two directions.

    Example:
        >>> import torch
        >>> outputs, hidden = Recurrent("lstm", 4, 8, depth=2)(torch.zeros(1, 3, 4))
        >>> outputs.shape, len(hidden), hidden[0].shape
        (torch.Size([1, 3, 8]), 2, torch.Size([2, 1, 8]))
    """

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
            width // 2 if bidirectional else width,
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
        """Outputs at every position, and the state after the last token of each row.

        Args:
            x: Vectors of a sequence.
            hidden: The state before it.
            lengths: Tokens of each row, before padding; by default all positions are tokens.
        """
        initial = hidden[0] if hidden is not None and len(hidden) == 1 else hidden
        if lengths is None:
            outputs, last = self.cells(x, initial)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            outputs, last = self.cells(packed, initial)
            outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])

        if not isinstance(last, tuple):
            last = (last,)

        return outputs, tuple(map(self.join_directions, last))

    def join_directions(self, hidden: Float[Tensor, "M B W"]) -> Float[Tensor, "L B E"]:
        """Forward and backward states side by side: (2 L, B, E / 2) -> (L, B, E)."""
        if not self.bidirectional:
            return hidden

        return torch.cat([hidden[0::2], hidden[1::2]], dim=-1)
