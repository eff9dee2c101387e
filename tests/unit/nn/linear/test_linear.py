"""Every kernel of a linear layer gives the numbers of the definition, and its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from qkv.nn.linear.linear import Linear, linear, onednn_supports
from qkv.nn.linear.onednn import prepacking

SHAPES = [(1, 64), (8, 64), (2, 3, 64), (2, 1, 64), (0, 64), (1025, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [None, slice(0, 40), slice(40, None)])
def test_few_rows_equal_float64(shape: tuple[int, ...], biased: bool, rows: slice | None) -> None:
    x, weight = torch.randn(shape), torch.randn(100, 64)
    bias = torch.randn(100) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    exact = exact if rows is None else exact[..., rows]
    with torch.no_grad():
        assert_close(linear(x, weight, bias, rows), exact.float(), rtol=1e-5, atol=1e-4)
        with prepacking():
            assert_close(linear(x, weight, bias, rows), exact.float(), rtol=1e-5, atol=1e-4)


def test_any_layout_of_the_input_and_any_place_in_memory() -> None:
    """As a matrix lies in a file that is mapped into memory, at no round address."""
    weight = torch.randn(1 + 50 * 32)[1:].view(50, 32)
    x = torch.randn(32, 4).T
    with torch.no_grad():
        assert onednn_supports(x, weight)
        assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-4)
        turned = torch.randn(32, 50).T
        assert not onednn_supports(x, turned)
        assert_close(linear(x, turned), F.linear(x, turned), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_any_layout_of_the_bias(rows: int) -> None:
    weight, x = torch.randn(50, 32), torch.randn(rows, 32)
    for bias in (torch.randn(50, 2)[:, 0], torch.randn(1).expand(50)):
        with torch.no_grad():
            assert_close(linear(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("rows", [1, 2, 5, 20])
def test_a_matrix_without_rows_or_columns(rows: int) -> None:
    with torch.no_grad():
        assert linear(torch.randn(rows, 8), torch.randn(0, 8)).shape == (rows, 0)
        assert linear(torch.randn(rows, 8), torch.randn(40, 8), rows=slice(3, 3)).shape == (rows, 0)
        assert_close(linear(torch.randn(rows, 0), torch.randn(40, 0)), torch.zeros(rows, 40))


def test_a_gradient_is_never_lost() -> None:
    layer, x = Linear(16, 8), torch.randn(2, 16, requires_grad=True)
    layer(x).square().sum().backward()
    right = torch.nn.Linear(16, 8)
    right.load_state_dict(layer.state_dict())
    y = x.detach().clone().requires_grad_()
    right(y).square().sum().backward()
    assert_close(x.grad, y.grad)
    assert_close(layer.weight.grad, right.weight.grad)
    assert_close(layer.bias.grad, right.bias.grad)


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated
@pytest.mark.parametrize("rows", [1, 5])
def test_transforms_see_operations_of_pytorch(rows: int) -> None:
    layer, x = Linear(6, 8).requires_grad_(False), torch.randn(rows, 6)
    with torch.no_grad():
        expected = layer(x)
        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert counter.get_total_flops() == 2 * rows * 6 * 8
        assert_close(torch.jit.trace(layer, (x,))(x), expected)
        assert_close(torch.func.vmap(layer)(x), expected)


def test_other_numbers_take_the_usual_way() -> None:
    with torch.no_grad():
        assert not onednn_supports(torch.randn(1, 4).double(), torch.randn(3, 4).double())
        assert not onednn_supports(
            torch.randn(1, 4, device="meta"), torch.randn(3, 4, device="meta")
        )
        with torch.autocast("cpu", torch.bfloat16):
            assert not onednn_supports(torch.randn(1, 4), torch.randn(3, 4))
    assert not onednn_supports(torch.randn(1, 4), torch.randn(3, 4))
