"""Recurrent layers: RNN, LSTM and GRU, whose hidden vector carries all that was read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
        residual: From the second layer on, add a layer's input to its output: x + layer(x).

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
        residual: bool = False,
    ) -> None:
        super().__init__()
        if bidirectional and width % 2:
            raise ValueError(f"width: expected an even number for two directions, not {width}")

        self.bidirectional = bidirectional
        self.residual = residual
        one_way = width // 2 if bidirectional else width
        make = partial(CELLS[cell], batch_first=True, bidirectional=bidirectional)
        self.cells: nn.Module
        if not residual:
            self.cells = make(input_width, one_way, depth, dropout=dropout if depth > 1 else 0.0)
            return

        # PyTorch's stack has no residuals, so every layer is a module of its own.
        self.dropout = nn.Dropout(dropout)
        widths = [input_width] + [width] * (depth - 1)
        self.cells = nn.ModuleList(make(layer_width, one_way) for layer_width in widths)

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
        if not self.residual:
            outputs, last = run_cells(self.cells, x, hidden, lengths)
            return outputs, tuple(map(self.join_directions, last))

        states = []
        for layer, cells in enumerate(self.cells.children()):
            before = None
            if hidden is not None:
                before = tuple(h[layer : layer + 1] for h in hidden)  # each (1, B, E)

            if layer == 0:
                x, last = run_cells(cells, x, before, lengths)
            else:
                outputs, last = run_cells(cells, self.dropout(x), before, lengths)
                x = x + outputs

            states.append(tuple(map(self.join_directions, last)))

        return x, tuple(torch.cat(layers) for layers in zip(*states, strict=True))

    def join_directions(self, hidden: Float[Tensor, "M B W"]) -> Float[Tensor, "L B E"]:
        """Forward and backward states side by side: (2 L, B, E / 2) -> (L, B, E)."""
        if not self.bidirectional:
            return hidden

        return torch.cat([hidden[0::2], hidden[1::2]], dim=-1)


def run_cells(
    cells: nn.Module,
    x: Float[Tensor, "B T I"],
    hidden: Hidden | None,
    lengths: Int[Tensor, "B"] | None,
) -> tuple[Float[Tensor, "B T E"], Hidden]:
    """PyTorch's layers on padded rows; their last state as a tuple."""
    initial = hidden
    if hidden is not None and len(hidden) == 1:
        initial = hidden[0]  # type: ignore[assignment]

    if lengths is None:
        outputs, last = cells(x, initial)
    else:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, last = cells(packed, initial)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])

    if not isinstance(last, tuple):
        last = (last,)

    return outputs, last
