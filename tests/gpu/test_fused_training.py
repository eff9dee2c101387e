"""Training on a GPU: GELU inside matrix products, and Muon without waiting for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")]


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    value = value.detach().double()
    expected = expected.detach().double()
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_feed_forward_equals_its_definition(bias: bool, dtype: torch.dtype) -> None:
    """Odd sizes: the last tiles of rows and columns are not full."""
    from qkv.nn.feed_forward import FeedForward
    from qkv.nn.fused import fused_feed_forward

    torch.manual_seed(0)
    exact = FeedForward(200, 328, "gelu_tanh", bias=bias).double().cuda()
    layer = FeedForward(200, 328, "gelu_tanh", bias=bias).cuda()
    layer.load_state_dict(exact.state_dict())
    layer = layer.to(dtype)
    exact.load_state_dict(layer.state_dict())
    fused_feed_forward.install(layer)

    x = torch.randn(3, 701, 200, device="cuda").to(dtype).requires_grad_()
    gradient = torch.randn(3, 701, 200, device="cuda").to(dtype)
    assert fused_feed_forward.supports(layer, x)
    exact_x = x.detach().double().requires_grad_()
    weights = [x, *layer.parameters()]
    exact_weights = [exact_x, *exact.parameters()]
    result = layer(x)
    expected = exact(exact_x)
    assert relative_error(result, expected) < 1e-2
    gradients = torch.autograd.grad(result, weights, gradient)
    exact_gradients = torch.autograd.grad(expected, exact_weights, gradient.double())
    for mine, right in zip(gradients, exact_gradients, strict=True):
        assert relative_error(mine, right) < 1e-2


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_compiled_model_uses_it_and_has_the_gradients_of_eager_mode(cuda_graph: bool) -> None:
    from qkv.data.batches.batch import Batch
    from qkv.models import GPT, GPTConfig
    from qkv.nn.fused import cublaslt
    from qkv.training.objective import Objective
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=300, context=128, width=64, depth=2, heads=4, activation="gelu_tanh"
    )
    model = GPT(config).cuda()
    ids = torch.randint(300, (16, 129))
    batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
    world = World(torch.device("cuda"))
    plain = Objective(model, precision="bf16")
    gradients_of(plain, batch, world)
    expected = [parameter.grad.clone() for parameter in model.parameters()]

    calls: list[int] = []
    kernel = cublaslt.gelu_gradient

    def counted(*args: Any) -> Any:
        calls.append(1)
        return kernel(*args)

    cublaslt.gelu_gradient = counted
    try:
        fast = Objective(model, precision="bf16")
        fast.compile_reader()
        if cuda_graph:
            fast.use_cuda_graph()

        model.zero_grad(set_to_none=True)
        gradients_of(fast, batch, world)
    finally:
        cublaslt.gelu_gradient = kernel

    assert calls
    for parameter, right in zip(model.parameters(), expected, strict=True):
        assert relative_error(parameter.grad, right) < 3e-2


def test_muon_equals_float64_and_never_waits_for_the_device() -> None:
    from qkv.models import GPT, GPTConfig
    from qkv.training.optimizer import Optimizers
    from qkv.training.run_config import OptimizerConfig

    size = {"vocabulary": 50, "context": 16, "width": 64, "depth": 3, "heads": 4}
    torch.manual_seed(0)
    exact = GPT(GPTConfig(**size)).double()
    model = GPT(GPTConfig(**size))
    model.load_state_dict(exact.state_dict())
    model = model.cuda()
    exact_optimizers = Optimizers(exact, OptimizerConfig(optimizer="muon"))
    optimizers = Optimizers(model, OptimizerConfig(optimizer="muon"))
    before = [weight.detach().clone() for weight in exact.parameters()]
    for step in range(3):
        for mine, right in zip(model.parameters(), exact.parameters(), strict=True):
            right.grad = torch.randn_like(right)
            mine.grad = right.grad.float().cuda()

        exact_optimizers.set_rate(1e-3 / (step + 1), 1e-3)
        exact_optimizers.step(torch.zeros(()), torch.ones(()))
        optimizers.set_rate(1e-3 / (step + 1), 1e-3)
        bad = torch.zeros((), device="cuda")
        one = torch.ones((), device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizers.step(bad, one)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    for mine, right, start in zip(model.parameters(), exact.parameters(), before, strict=True):
        change = right - start
        assert float((mine.detach().cpu().double() - right).norm()) < 3e-2 * float(change.norm())
