"""The feed-forward layer of training equals its definition, forward and backward."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.nn.feed_forward import FeedForward
from qkv.nn.fused import cublaslt, fused_feed_forward
from qkv.nn.hooks import add_hook
from qkv.nn.lora import attach_adapters
from qkv.nn.stack_config import AdapterConfig


def use_eager_products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put the definitions in the place of cuBLASLt, for every input; return which are called."""
    from qkv.nn.fused import cublaslt, fused_feed_forward

    calls: list[str] = []

    def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append("forward")
        hidden = F.linear(x, weight, bias)
        return hidden, F.gelu(hidden, approximate="tanh")

    def gelu_gradient(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
        calls.append("backward")
        return torch.ops.aten.gelu_backward(gradient @ weight, hidden, approximate="tanh")

    monkeypatch.setattr(cublaslt, "linear_gelu", linear_gelu)
    monkeypatch.setattr(cublaslt, "gelu_gradient", gelu_gradient)
    monkeypatch.setattr(cublaslt, "available", lambda device: True)
    monkeypatch.setattr(fused_feed_forward, "supports", lambda layer, x: True)
    return calls


def test_a_copy_computes_with_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "available", lambda device: True)
    layer = FeedForward(16, 24, "gelu_tanh")
    fused_feed_forward.install(layer)
    x = torch.randn(2, 5, 16)
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(copy(x), layer(x))
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.zero_()

        assert not copy(x).any()
        assert layer(x).any()


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_the_definitions(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = use_eager_products(monkeypatch)
    torch.manual_seed(0)
    layer = FeedForward(16, 24, "gelu_tanh", bias=bias)
    x = torch.randn(2, 5, 16, requires_grad=True)
    weights = [x, *layer.parameters()]
    expected = layer(x)
    gradients = torch.autograd.grad(expected.square().sum(), weights)

    fused_feed_forward.install(layer)
    result = layer(x)
    torch.testing.assert_close(result, expected)
    for mine, right in zip(
        torch.autograd.grad(result.square().sum(), weights), gradients, strict=True
    ):
        torch.testing.assert_close(mine, right)

    assert calls == ["forward", "backward"]


@pytest.mark.usefixtures("double_by_default", "qkv_unchecked", "fresh_compiler")
def test_the_compiled_layer_calls_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.nn.feed_forward import FeedForward
    from qkv.nn.fused import fused_feed_forward

    calls = use_eager_products(monkeypatch)
    layer = FeedForward(16, 24, "gelu_tanh")
    x = torch.randn(2, 5, 16, requires_grad=True)
    expected = layer(x)
    fused_feed_forward.install(layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    assert "backward" in calls


def test_a_hook_on_the_hidden_values_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "available", lambda device: True)
    layer = FeedForward(16, 24, "gelu_tanh")
    fused_feed_forward.install(layer)
    seen: list[torch.Size] = []

    with add_hook(layer, "hidden", lambda value, name: seen.append(value.shape)):
        layer(torch.randn(1, 3, 16))

    assert seen == [torch.Size([1, 3, 24])]


def test_which_layers_are_supported() -> None:
    assert fused_feed_forward.supports_layer(FeedForward(16, 24, "gelu_tanh"))
    assert not fused_feed_forward.supports_layer(FeedForward(16, 24, "gelu"))
    assert not fused_feed_forward.supports_layer(FeedForward(16, 20, "gelu_tanh"))

    class Own(FeedForward):
        """A layer that may compute anything."""

    assert not fused_feed_forward.supports_layer(Own(16, 24, "gelu_tanh"))
    adapted = FeedForward(16, 24, "gelu_tanh")
    attach_adapters(adapted, AdapterConfig(rank=2, projections=("up",)))
    assert not fused_feed_forward.supports_layer(adapted)


def test_a_cpu_and_a_pass_without_gradients_use_the_definition() -> None:
    layer = FeedForward(16, 24, "gelu_tanh").bfloat16()
    assert not fused_feed_forward.supports(layer, torch.zeros(1, 4096, 16, dtype=torch.bfloat16))


def test_on_a_cpu_nothing_is_installed() -> None:
    assert not cublaslt.available(torch.device("cpu"))
    layer = FeedForward(16, 24, "gelu_tanh")
    fused_feed_forward.install(layer)
    assert "forward" not in vars(layer)
