"""The feed-forward layer against its formula for every activation."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.feed_forward import FeedForward, activate


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": silu,
    "relu2": lambda x: max(x, 0.0) ** 2,
}
numbers = [-3.0, -0.5, 0.0, 0.3, 2.0]


@pytest.mark.parametrize("kind", FORMULAS)
def test_activations_are_their_formulas(kind: str) -> None:
    actual = activate(torch.tensor(numbers, dtype=torch.float64), kind)
    assert actual.tolist() == pytest.approx([FORMULAS[kind](x) for x in numbers])


def test_swiglu_gates_one_half_with_the_other() -> None:
    both = torch.tensor([*numbers, 1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    right = [silu(x) * up for x, up in zip(numbers, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True)]
    assert activate(both, "swiglu").tolist() == pytest.approx(right)


@pytest.mark.parametrize("kind", [*FORMULAS, "swiglu"])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_is_down_of_activation_of_up(kind: str, bias: bool) -> None:
    layer = FeedForward(4, 6, kind, bias=bias).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    up = x @ layer.up.weight.T + (layer.up.bias if bias else 0)
    right = activate(up, kind) @ layer.down.weight.T + (layer.down.bias if bias else 0)
    assert_close(layer(x), right)
    assert layer.up.weight.shape == (12 if kind == "swiglu" else 6, 4)
    assert (layer.up.bias is not None) == (layer.down.bias is not None) == bias


def test_each_position_on_its_own() -> None:
    layer = FeedForward(4, 6)
    x = torch.randn(2, 3, 4)
    assert_close(layer(x)[:, 1:2], layer(x[:, 1:2]))
