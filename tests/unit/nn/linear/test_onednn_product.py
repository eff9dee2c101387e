"""oneDNN's products of training: values and gradients of float64, wherever they are selected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from qkv import machine
from qkv.data.batches.batch import Batch
from qkv.models import GPTConfig, build
from qkv.nn.linear import onednn_product
from qkv.nn.linear.linear import Linear, linear
from qkv.nn.linear.onednn_product import product
from qkv.training.objective import Objective


@pytest.fixture(autouse=True)
def on_such_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN multiplies on every x86 processor; where it is slower, it is not selected."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")

    monkeypatch.setattr(onednn_product, "faster_than_mkl", lambda: True)
    monkeypatch.setattr(onednn_product, "LEAST_WORK", 1)


@pytest.fixture
def weights_read(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The matrices that oneDNN has multiplied by."""
    read: list[Tensor] = []
    multiply = onednn_product.multiply

    def recorded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        read.append(weight)
        return multiply(x, weight, bias)

    monkeypatch.setattr(onednn_product, "multiply", recorded)
    return read


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", [(12,), (7, 12), (3, 5, 12), (2, 1, 4, 12)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
def test_values_and_gradients_equal_float64(
    shape: tuple[int, ...], bias: bool, contiguous: bool, weights_read: list[Tensor]
) -> None:
    layer = Linear(12, 20, bias=bias)
    precise = Linear(12, 20, bias=bias).double()
    precise.load_state_dict(layer.state_dict())
    x = torch.randn(shape)
    if not contiguous:
        x = torch.randn(*shape[:-1], 24)[..., ::2]

    x.requires_grad_()
    x64 = x.detach().double().requires_grad_()
    y = layer(x)
    assert weights_read[0] is layer.weight
    expected = F.linear(x64, precise.weight, precise.bias)
    assert relative_error(y.detach(), expected.detach()) < 1e-6

    slope = torch.randn_like(y)
    y.backward(slope)
    expected.backward(slope.double())
    assert x.grad is not None
    assert x64.grad is not None
    assert relative_error(x.grad, x64.grad) < 1e-6
    for ours, theirs in zip(layer.parameters(), precise.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.is_contiguous()
        assert relative_error(ours.grad, theirs.grad) < 1e-6


@pytest.mark.parametrize("bias", [torch.randn(8, 2)[:, 0], torch.randn(1).expand(8)])
def test_any_layout_of_the_bias(bias: Tensor) -> None:
    """oneDNN would read eight numbers side by side."""
    x, weight = torch.randn(5, 6), torch.randn(8, 6)
    assert onednn_product.supports(x, weight)
    expected = F.linear(x.double(), weight.double(), bias.double())
    assert relative_error(linear(x, weight, bias), expected) < 1e-6
    with torch.no_grad():
        assert relative_error(linear(x, weight, bias), expected) < 1e-6


def first_halves(y: Tensor) -> Tensor:
    return torch.cat([y, y], -1)[..., : y.shape[-1]].square().sum()


@pytest.mark.parametrize("widths", [(6, 8), (8, 6), (7, 7)])
@pytest.mark.parametrize(
    "loss",
    [
        torch.sum,
        first_halves,
        lambda y: (y[:, ::2] ** 2).sum(),
        lambda y: y.transpose(0, 1)[1].sum(),
        lambda y: y.flatten(0, -2).sum(0).square().sum(),
    ],
)
def test_slopes_in_any_layout(
    widths: tuple[int, int], loss: Callable[[Tensor], Tensor], weights_read: list[Tensor]
) -> None:
    layer, x = Linear(*widths), torch.randn(4, 5, widths[0])
    for rows in (x, x[:, :2], x[:, ::2]):
        (ours,) = torch.autograd.grad(loss(layer(rows)), [layer.weight])
        weight = layer.weight.detach().double().requires_grad_()
        assert layer.bias is not None
        expected = F.linear(rows.double(), weight, layer.bias.detach().double())
        (theirs,) = torch.autograd.grad(loss(expected), [weight])
        assert relative_error(ours, theirs) < 1e-6

    assert len(weights_read) >= 3
    assert all(onednn_product.without_gaps(weight) for weight in weights_read)


def test_a_matrix_with_gaps_is_left_to_pytorch(weights_read: list[Tensor]) -> None:
    """oneDNN would multiply by it with plain loops."""
    for a, b in [
        (torch.randn(64, 8).t(), torch.randn(64, 3, 8)[:, 0]),  # a token of each sequence
        (torch.randn(9).expand(64, 9).t(), torch.randn(64, 2, 8)[:, 0]),
        (torch.randn(9, 64), torch.randn(8).expand(64, 8)),
    ]:
        assert relative_error(product(a, b), a.double() @ b.double()) < 1e-6

    assert not weights_read


def test_outputs_may_be_changed_in_place() -> None:
    layer, x = Linear(6, 6), torch.randn(2, 3, 6)
    y = layer(x)
    y += 1
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum((0, 1)).expand(6, 6))


def test_only_what_a_gradient_needs_is_saved() -> None:
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    for frozen_weight, shapes in ((True, [(8, 6)]), (False, [(5, 6)])):
        layer = Linear(6, 8).requires_grad_(not frozen_weight)
        x = torch.randn(5, 6, requires_grad=frozen_weight)
        del saved[:]
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            layer(x)
        assert [tuple(tensor.shape) for tensor in saved] == shapes


def test_operations_are_counted() -> None:
    layer, x = Linear(6, 8), torch.randn(5, 6)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 5 * 6 * 8


@pytest.mark.parametrize(("M", "K", "N"), [(9, 4, 30), (30, 4, 9), (5, 16, 5), (1, 8, 1)])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("into", [True, False])
def test_products_of_transposed_matrices(
    M: int, K: int, N: int, transposed: bool, into: bool, weights_read: list[Tensor]
) -> None:
    a = torch.randn(K, M).t() if transposed else torch.randn(M, K)
    b = torch.randn(K, N)
    out = torch.full((M, N), torch.nan) if into else None
    result = product(a, b, out=out)
    assert relative_error(result, a.double() @ b.double()) < 1e-6
    assert result.is_contiguous()
    assert out is None or result is out
    assert len(weights_read) == 1


def test_second_derivatives_are_those_of_pytorch() -> None:
    layer = Linear(3, 4)
    x = torch.randn(5, 3, requires_grad=True)

    def curvature(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
        (slope,) = torch.autograd.grad(function(x).tanh().sum(), [x], create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), [x]))

    weight, bias = (parameter.detach().double() for parameter in layer.parameters())
    expected = curvature(lambda x: F.linear(x, weight, bias), x.detach().double().requires_grad_())
    assert relative_error(curvature(layer, x)[0], expected[0]) < 1e-5


@pytest.mark.filterwarnings("ignore")  # sparse matrices are in beta, tracing is deprecated
def test_other_transforms_and_kinds_are_left_to_pytorch() -> None:
    layer, x = Linear(4, 4), torch.randn(6, 4)

    def by_onednn(*arguments: Tensor) -> bool:
        return onednn_product.supports(*arguments)

    assert by_onednn(x, layer.weight)
    assert not by_onednn(x.double(), layer.weight)
    assert not by_onednn(x.to("meta"), layer.weight)
    assert not by_onednn(torch.nn.Parameter(x), layer.weight)
    assert not by_onednn(x, torch.randn(4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        assert not by_onednn(x, layer.weight)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not by_onednn(x, layer.weight)

    traced = torch.jit.trace(layer, (x,))
    assert not any("mkldnn" in str(node) for node in traced.inlined_graph.nodes())

    sparse = layer.weight.detach().to_sparse_csr()
    torch.testing.assert_close(linear(x, sparse), x @ layer.weight.T)
    torch.testing.assert_close(linear(x.to_sparse(), layer.weight), x @ layer.weight.T)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))
    slope = torch.func.grad(lambda x: layer(x).sum())(x)
    torch.testing.assert_close(slope, layer.weight.sum(0).expand(6, 4))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(layer(dual)).tangent
    torch.testing.assert_close(tangent, layer.weight.sum(1).expand(6, 4))


def test_a_product_with_little_work_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_product, "LEAST_WORK", 6 * 4 * 5)
    weight = torch.randn(5, 4)
    assert onednn_product.supports(torch.randn(6, 4), weight)
    assert not onednn_product.supports(torch.randn(5, 4), weight)


@pytest.mark.parametrize("tied", [True, False])
def test_the_gradients_of_a_gpt_stay_the_same(
    monkeypatch: pytest.MonkeyPatch, tied: bool, weights_read: list[Tensor]
) -> None:
    config = GPTConfig(vocabulary=70, context=16, width=16, depth=2, heads=2, tied=tied)
    model = build(replace(config, dropout=0.0)).train()
    ids = torch.randint(70, (3, 17))
    batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())

    def gradients() -> Iterator[Tensor]:
        model.zero_grad()
        Objective(model)(batch).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            yield parameter.grad.clone()

    ours = list(gradients())
    assert weights_read
    monkeypatch.setattr(onednn_product, "faster_than_mkl", lambda: False)
    for actual, expected in zip(ours, gradients(), strict=True):
        assert relative_error(actual, expected.double()) < 1e-5


@pytest.mark.parametrize(
    ("vendor", "capability", "faster"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        ("", "DEFAULT", False),
    ],
)
def test_which_processors(
    monkeypatch: pytest.MonkeyPatch, vendor: str, capability: str, faster: bool
) -> None:
    monkeypatch.undo()  # the fixture's replacement
    text = f"processor : 0\nvendor_id\t: {vendor}\nmodel name : a\n" if vendor else ""
    monkeypatch.setattr(machine, "read", lambda path: text)
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    onednn_product.faster_than_mkl.cache_clear()
    try:
        assert machine.cpu_vendor() == vendor
        assert onednn_product.faster_than_mkl() == faster
    finally:
        onednn_product.faster_than_mkl.cache_clear()


@pytest.mark.parametrize(
    ("processor", "vendor"),
    [("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", "AuthenticAMD"), ("aarch64", "")],
)
def test_the_vendor_on_windows(
    monkeypatch: pytest.MonkeyPatch, processor: str, vendor: str
) -> None:
    monkeypatch.setattr(machine, "read", lambda path: "")
    monkeypatch.setattr(machine.platform, "system", lambda: "Windows")
    monkeypatch.setattr(machine.platform, "processor", lambda: processor)
    assert machine.cpu_vendor() == vendor
