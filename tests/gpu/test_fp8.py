"""FP8 on a GPU: products, the loss of an output layer, and feed-forward layers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")]


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    value = value.detach().double()
    expected = expected.detach().double()
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize("fast", [True, False])
def test_a_product_equals_that_of_the_rounded_numbers(fast: bool) -> None:
    from qkv.nn.fused.fp8 import E5M2, product, quantised

    a = quantised(7 * torch.randn(64, 256, device="cuda"), E5M2)
    b = quantised(torch.randn(128, 256, device="cuda") / 50)
    expected = a.dequantised().double() @ b.dequantised().double().T
    assert relative_error(product(a, b, torch.float32, fast=fast), expected) < 2e-3


@pytest.mark.parametrize(("N", "chunk"), [(320, 128), (317, 128), (320, 100)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_fp8_loss_equals_the_exact_loss(smoothing: float, N: int, chunk: int) -> None:
    """A vocabulary that is no multiple of 128, three chunks, positions without a target.

    Neither positions nor chunks need be a multiple of 16.
    """
    from qkv.training import fp8_loss
    from qkv.training.loss import loss_sum

    torch.manual_seed(0)
    features = torch.randn(N, 64, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(1000, 64, device="cuda") / 8).requires_grad_()
    targets = torch.randint(1000, (N,), device="cuda")
    targets[::5] = -100
    assert fp8_loss.supports(features, weight, None, None)

    loss = loss_sum(features, weight, None, targets, smoothing=smoothing, chunk=chunk, fp8=True)
    gradients = torch.autograd.grad(0.5 * loss, [features, weight])
    exact = [features.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    expected = loss_sum(*exact, None, targets, smoothing=smoothing)
    exact_gradients = torch.autograd.grad(0.5 * expected, exact)
    assert abs(float(loss.detach() / expected.detach()) - 1) < 5e-3
    for gradient, right in zip(gradients, exact_gradients, strict=True):
        assert relative_error(gradient, right) < 8e-2


def poison(*shapes: tuple[int, int]) -> None:
    """Leave the bytes of NaN in the memory that the next matrices of these shapes get."""
    for shape in shapes:
        for _ in range(2):
            torch.full(shape, 0x7F, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(("M", "P"), [(4096, 768), (1040, 80), (1037, 208), (17, 16), (1, 1600)])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_kernel_equals_its_definition_in_both_layouts(
    kind: int, activation: str, M: int, P: int
) -> None:
    """Also where the last tiles are not full, and whatever the memory held before."""
    from qkv.nn.fused.fp8 import E4M3, E5M2, rounded_up
    from qkv.nn.fused.fp8_layouts import computed_eagerly, tiles

    torch.manual_seed(0)
    x = (2 * torch.randn(M, P, device="cuda")).bfloat16()
    x[0, :6] = torch.tensor([0.0, 300.0, -300.0, 1e-6, 8.0, -8.0])
    gradient = torch.randn(M, P, device="cuda").bfloat16()
    scale = torch.tensor(0.02, device="cuda")
    for dtype in (E4M3, E5M2):
        for _ in range(3):
            poison((M, P), (P, rounded_up(M)))
            result, sums = tiles(kind, x, gradient, scale, dtype, activation, True)
            right, right_sums = computed_eagerly(kind, x, gradient, scale, dtype, activation, True)
            assert result.rows.float().isfinite().all()
            # A number between two 8-bit ones may be rounded to either
            assert (result.rows.float() != right.rows.float()).float().mean() < 5e-3
            assert relative_error(result.rows.float(), right.rows.float()) < 1e-2
            assert torch.equal(result.columns[:, :M].float(), result.rows.float().T)
            assert not result.columns[:, M:].float().any()
            assert sums is not None
            assert right_sums is not None
            assert relative_error(sums, right_sums) < 1e-4


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("T", "dtype"), [(701, torch.bfloat16), (512, torch.float16)])
def test_the_feed_forward_layer_equals_its_definition(
    T: int, dtype: torch.dtype, bias: bool, activation: Any
) -> None:
    from qkv.nn.feed_forward import FeedForward
    from qkv.nn.fused import fp8_feed_forward

    torch.manual_seed(0)
    layer = FeedForward(768, 1040, activation, bias=bias).cuda().to(dtype)
    exact = deepcopy(layer).double()
    fp8_feed_forward.install(layer)
    x = torch.randn(3, T, 768, device="cuda").to(dtype).requires_grad_()
    gradient = torch.randn(3, T, 768, device="cuda").to(dtype)
    assert fp8_feed_forward.supports(layer, x)
    exact_x = x.detach().double().requires_grad_()
    result = layer(x)
    expected = exact(exact_x)
    assert relative_error(result, expected) < 0.08
    gradients = torch.autograd.grad(result, [x, *layer.parameters()], gradient)
    exact_weights = [exact_x, *exact.parameters()]
    exact_gradients = torch.autograd.grad(expected, exact_weights, gradient.double())
    for mine, right in zip(gradients, exact_gradients, strict=True):
        assert relative_error(mine, right) < 0.12

    assert not fp8_feed_forward.supports(layer, x[:1])  # too few rows
    layer.eval()
    assert relative_error(layer(x), expected) < 1e-2


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_compiled_model_uses_fp8_in_every_step(cuda_graph: bool) -> None:
    """Gradients stay near those of bf16, and are never NaN."""
    from qkv.data.batches.batch import Batch
    from qkv.models import GPT, GPTConfig
    from qkv.nn.fused import fp8_feed_forward
    from qkv.training.objective import Objective
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=304, context=128, width=768, depth=2, heads=12, activation="gelu_tanh"
    )
    model = GPT(config).cuda()
    ids = torch.randint(304, (16, 129))
    batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
    world = World(torch.device("cuda"))
    gradients_of(Objective(model, precision="bf16"), batch, world)
    expected = [parameter.grad.clone() for parameter in model.parameters()]

    calls: list[int] = []
    compute = fp8_feed_forward.compute_backward

    def counted(*args: Any) -> Any:
        calls.append(1)
        return compute(*args)

    fp8_feed_forward.compute_backward = counted
    try:
        fast = Objective(model, precision="bf16")
        fast.use_fp8()
        fast.compile_reader()
        if cuda_graph:
            fast.use_cuda_graph()

        for _ in range(3):
            model.zero_grad(set_to_none=True)
            gradients_of(fast, batch, world)
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            for gradient, right in zip(gradients, expected, strict=True):
                assert relative_error(gradient, right) < 0.2  # two layers and the loss in FP8
    finally:
        fp8_feed_forward.compute_backward = compute

    assert calls
