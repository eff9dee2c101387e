"""Recurrent layers step by step equal PyTorch's packed pass: outputs, states and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.models import RNNConfig, build
from qkv.nn import recurrent
from qkv.nn.recurrent import Recurrent, is_plain, run_cells, run_steps, supports_steps
from qkv.training.objective import Objective

CELLS = ("rnn", "lstm", "gru")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_steps_equal_the_packed_pass(
    cell: Any, depth: int, bidirectional: bool, padded: bool, started: bool
) -> None:
    torch.manual_seed(0)
    layers = Recurrent(cell, 6, 8, depth, bidirectional=bidirectional).double()
    cells = layers.cells
    assert is_plain(cells)
    x = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 2, 1, 4]) if padded else None
    hidden = None
    if started:
        width = 4 if bidirectional else 8
        shape = (depth * (2 if bidirectional else 1), 4, width)
        count = 2 if cell == "lstm" else 1
        hidden = tuple(torch.randn(shape, dtype=torch.float64) for _ in range(count))

    def result(run: Any) -> tuple[list[Tensor], Any]:
        outputs, last = run(cells, x, hidden, lengths)
        total = outputs.square().sum() + sum((h * 0.3).exp().sum() for h in last)
        return [outputs, *last], torch.autograd.grad(total, [x, *cells.parameters()])

    expected, expected_gradients = result(run_cells)
    found, found_gradients = result(run_steps)
    for a, b in zip([*found, *found_gradients], [*expected, *expected_gradients], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_dropout_between_layers_has_the_probability_of_the_module() -> None:
    cells = nn.GRU(6, 8, 2, dropout=1.0, batch_first=True)
    x = torch.randn(2, 3, 6)
    expected, _ = cells(x)  # the second layer reads zeros, whatever x is
    torch.testing.assert_close(run_steps(cells, x, None, None)[0], expected)
    cells.eval()
    expected, _ = cells(x)
    torch.testing.assert_close(run_steps(cells, x, None, None)[0], expected)


@pytest.mark.parametrize("attention", ["additive", "general", "scaled_dot", "none"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_whole_translator_has_the_same_gradients(
    cell: Any, attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = RNNConfig(
        vocabulary=20, width=8, depth=2, cell=cell, attention=attention, dropout=0.0, residual=True
    )
    model = build(config).double().train()
    objective = Objective(model)
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    batch = Batch(
        ids=torch.randint(20, (3, 4)),
        targets=torch.randint(20, (3, 4)),
        source=torch.randint(20, (3, 5)),
        source_padding_mask=mask,
    )
    gradients = []
    for steps in (False, True):
        monkeypatch.setattr(
            recurrent, "supports_steps", lambda cells, x, lengths, steps=steps: steps
        )
        model.zero_grad(set_to_none=True)
        objective(batch).backward()
        gradients.append([weight.grad for weight in model.parameters()])

    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_only_plain_cells_are_replaced() -> None:
    assert is_plain(nn.GRU(4, 4))
    assert not is_plain(nn.GRU(4, 4, bias=False))
    assert not is_plain(nn.LSTM(4, 4, proj_size=2))
    assert not is_plain(nn.RNN(4, 4, nonlinearity="relu"))
    assert not is_plain(nn.Linear(4, 4))

    hooked = nn.GRU(4, 4)
    hooked.register_forward_hook(lambda module, inputs, output: output)
    assert not is_plain(hooked)


def test_layers_on_a_cpu_are_not_replaced() -> None:
    x = torch.zeros(2, 3, 4)
    assert not supports_steps(nn.GRU(4, 4), x, torch.tensor([3, 1]))
