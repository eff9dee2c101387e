"""Recurrent layers: RNN, LSTM and GRU, whose hidden vector carries all that was read."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.nn.stack_config import Cell
from qkv.nn.unchanged import unchanged

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
Hidden = tuple[Tensor, ...]
"""(h,), or (h, c) for an LSTM; each (L, B, E)."""
CELL_STEPS: dict[str, Callable[..., Any]] = {
    "RNN_TANH": torch.rnn_tanh_cell,
    "GRU": torch.gru_cell,
    "LSTM": torch.lstm_cell,
}
"""One step of one layer, by the mode of PyTorch's module."""
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


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
    if supports_steps(cells, x, lengths):
        return run_steps(cells, x, hidden, lengths)

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


def supports_steps(cells: nn.Module, x: Float[Tensor, "B T I"], lengths: Tensor | None) -> bool:
    """Whether `run_steps` computes a pass: in training on a GPU, for padded rows or one token."""
    if not x.is_cuda or not torch.is_grad_enabled():
        return False
    if lengths is None and x.shape[1] != 1:
        return False  # rows without padding are one call of cuDNN
    if lengths is not None and not lengths.is_cuda:
        return False

    return is_plain(cells)


def is_plain(cells: nn.Module) -> bool:
    """Whether the module is PyTorch's own, with biases, and nothing hooks into it."""
    if not unchanged(cells, nn.RNN, nn.GRU, nn.LSTM):
        return False

    return cells.mode in CELL_STEPS and bool(cells.bias) and not cells.proj_size


def run_steps(
    cells: Any,
    x: Float[Tensor, "B T I"],
    hidden: Hidden | None,
    lengths: Int[Tensor, "B"] | None,
) -> tuple[Float[Tensor, "B T E"], Hidden]:
    """The outputs of the cells for padded rows, zero at padding, and the last state of each row.

    PyTorch packs padded rows by lengths that the host must know, so a packed pass cannot be
    captured as a CUDA graph. Here rows keep their padding, and a state changes only where a row has
    a token: the numbers are those of the packed pass. The kernels are many and small, and meant for
    a graph.

    Args:
        cells: nn.RNN, nn.LSTM or nn.GRU, batch first.
        x: Vectors of a sequence.
        hidden: The state before it, (h,) or (h, c), each (layers x directions, B, E).
        lengths: Tokens of each row, before padding; by default all positions are tokens.
    """
    is_token: Bool[Tensor, "B T"] | None = None
    if lengths is not None:
        is_token = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)

    directions = ("", "_reverse") if cells.bidirectional else ("",)
    last: list[Hidden] = []
    for layer in range(cells.num_layers):
        if layer:
            x = F.dropout(x, cells.dropout, cells.training)

        sides = []
        for direction in directions:
            before = initial_state(cells, x, hidden, len(last))
            outputs, after = run_direction(cells, f"l{layer}{direction}", x, before, is_token)
            sides.append(outputs)
            last.append(after)

        x = torch.cat(sides, dim=-1)  # (B, T, E)

    return x, tuple(torch.stack(states) for states in zip(*last, strict=True))


def initial_state(cells: Any, x: Tensor, hidden: Hidden | None, number: int) -> Hidden:
    """The state of one layer and direction before the first position: zeros by default."""
    if hidden is not None:
        return tuple(states[number] for states in hidden)

    zeros = x.new_zeros(x.shape[0], cells.hidden_size)
    if cells.mode == "LSTM":
        return zeros, zeros

    return (zeros,)


def run_direction(
    cells: Any, name: str, x: Float[Tensor, "B T I"], state: Hidden, is_token: Tensor | None
) -> tuple[Float[Tensor, "B T W"], Hidden]:
    """One layer in one direction: its outputs at every position, and its last state."""
    step = CELL_STEPS[cells.mode]
    weights = [getattr(cells, f"{parameter}_{name}") for parameter in PARAMETERS]
    positions = list(range(x.shape[1]))
    if name.endswith("_reverse"):
        positions.reverse()

    outputs: dict[int, Tensor] = {}
    inputs = x.unbind(1)  # each (B, I)
    for position in positions:
        new = step(inputs[position], state if len(state) > 1 else state[0], *weights)
        if not isinstance(new, tuple):
            new = (new,)

        outputs[position] = new[0]
        if is_token is None:
            state = new
            continue

        # At padding the output is zero and the state stays.
        here = is_token[:, position : position + 1]  # (B, 1)
        outputs[position] = torch.where(here, new[0], 0.0)
        state = tuple(torch.where(here, *both) for both in zip(new, state, strict=True))

    return torch.stack([outputs[position] for position in sorted(outputs)], dim=1), state


def restore_own_weights(cells: nn.RNNBase) -> None:
    """Let a module that was called with other weights in place of its own list its own again.

    PyTorch's modules keep a list of the weights of their last call. Left as it is, it keeps that
    call's autograd graph alive, and the next call with the module's own weights moves them to
    another place in memory, where no CUDA graph finds them.
    """
    own = [getattr(cells, name) for name in cells._flat_weights_names]
    cells._flat_weights = own
    cells._flat_weight_refs = [weakref.ref(weight) for weight in own]
