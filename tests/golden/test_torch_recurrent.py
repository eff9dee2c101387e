"""Recurrent layers equal their equations, written by hand one step at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.nn.recurrent import Recurrent

B, T, INPUT, WIDTH = 3, 5, 4, 6
State = tuple[Tensor, ...]


def step(cell: str, cells: nn.RNNBase, suffix: str, x: Tensor, state: State) -> State:
    """Return one step of the cell; the gates lie one below the other in its matrices."""
    W, U, b, c = (
        getattr(cells, f"{name}_{suffix}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = state[0]
    inputs = x @ W.T + b
    selected = h @ U.T + c
    if cell == "rnn":
        return (torch.tanh(inputs + selected),)

    if cell == "lstm":
        i, f, g, o = (inputs + selected).chunk(4, dim=-1)
        memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(memory), memory

    (r, z, n) = inputs.chunk(3, dim=-1)
    (r_kept, z_kept, n_kept) = selected.chunk(3, dim=-1)
    reset = torch.sigmoid(r + r_kept)
    update = torch.sigmoid(z + z_kept)
    return ((1 - update) * torch.tanh(n + reset * n_kept) + update * h,)


def run(cell: str, cells: nn.RNNBase, suffix: str, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run the cell over (T, INPUT) of one row."""
    outputs = []
    for token in x:
        state = step(cell, cells, suffix, token, state)
        outputs.append(state[0])

    return torch.stack(outputs), state


def parts(cell: str) -> int:
    return 2 if cell == "lstm" else 1


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_two_layers_are_their_equations(cell: str) -> None:
    layer = Recurrent(cell, INPUT, WIDTH, 2).double()
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    first = tuple(torch.randn(2, B, WIDTH, dtype=torch.float64) for _ in range(parts(cell)))
    outputs, last = layer(x, first)
    for b in range(B):
        between, low = run(cell, layer.cells, "l0", x[b], tuple(h[0, b] for h in first))
        right, high = run(cell, layer.cells, "l1", between, tuple(h[1, b] for h in first))
        assert_close(outputs[b], right)
        for actual, below, above in zip(last, low, high, strict=True):
            assert_close(actual[:, b], torch.stack([below, above]))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_residual_layers_add_their_input_from_the_second_on(cell: str) -> None:
    layer = Recurrent(cell, INPUT, WIDTH, 3, residual=True).double()
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    first = tuple(torch.randn(3, B, WIDTH, dtype=torch.float64) for _ in range(parts(cell)))
    outputs, last = layer(x, first)
    for b in range(B):
        vectors = x[b]
        for number, cells in enumerate(layer.cells):
            before = tuple(h[number, b] for h in first)
            new, after = run(cell, cells, "l0", vectors, before)
            vectors = new if number == 0 else vectors + new
            for actual, right in zip(last, after, strict=True):
                assert_close(actual[number, b], right)

        assert_close(outputs[b], vectors)


def test_residual_layers_in_two_directions_respect_the_lengths_of_rows() -> None:
    layer = Recurrent("gru", INPUT, WIDTH, 2, bidirectional=True, residual=True).double()
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    lengths = torch.tensor([5, 1, 3])
    outputs, last = layer(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone, after = layer(x[b : b + 1, :length])
        assert_close(outputs[b : b + 1, :length], alone)
        assert_close(last[0][:, b : b + 1], after[0])


def test_one_residual_layer_is_a_plain_one() -> None:
    plain = Recurrent("lstm", INPUT, WIDTH, 1).double()
    residual = Recurrent("lstm", INPUT, WIDTH, 1, residual=True).double()
    weights = plain.state_dict().items()
    residual.load_state_dict({name.replace("cells.", "cells.0."): w for name, w in weights})
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    assert_close(residual(x), plain(x))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_two_directions_are_two_runs_side_by_side(cell: str) -> None:
    """Rows have their own lengths: the backward run starts at the last token, not at padding."""
    layer = Recurrent(cell, INPUT, WIDTH, 1, bidirectional=True).double()
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    lengths = torch.tensor([5, 1, 3])
    zero = tuple(torch.zeros(WIDTH // 2, dtype=torch.float64) for _ in range(parts(cell)))
    outputs, last = layer(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        present, after = run(cell, layer.cells, "l0", x[b, :length], zero)
        back, before = run(cell, layer.cells, "l0_reverse", x[b, :length].flip(0), zero)
        assert_close(outputs[b, :length], torch.cat([present, back.flip(0)], dim=-1))
        assert not outputs[b, length:].any()
        for actual, end, begin in zip(last, after, before, strict=True):
            assert_close(actual[0, b], torch.cat([end, begin]))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equal_lengths_equal_no_lengths(cell: str, bidirectional: bool) -> None:
    layer = Recurrent(cell, INPUT, WIDTH, 2, bidirectional=bidirectional).double()
    x = torch.randn(B, T, INPUT, dtype=torch.float64)
    (with_lengths, last) = layer(x, lengths=torch.full((B,), T))
    (without, same) = layer(x)
    assert_close(with_lengths, without)
    assert_close(last, same)
    assert last[0].shape == (2, B, WIDTH)
