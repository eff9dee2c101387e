"""FP8 on a GPU: products, and the loss of an output layer, within the error of 8 bits."""

from __future__ import annotations

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
