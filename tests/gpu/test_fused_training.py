"""Training on a GPU: GELU inside matrix products, Muon's kernels, and no waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@contextmanager
def no_waiting() -> Iterator[None]:
    """An operation that waits for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
        with no_waiting():
            optimizers.step(bad, one)

    for mine, right, start in zip(model.parameters(), exact.parameters(), before, strict=True):
        change = right - start
        assert float((mine.detach().cpu().double() - right).norm()) < 3e-2 * float(change.norm())


MATRICES = ((33, 47), (100, 100), (192, 768), (33, 47), (80, 24), (192, 768), (100, 100), (33, 47))
"""Some with fewer elements than a block, some with several blocks, the last of them not full."""


def matrices(seed: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=generator, device="cuda") for shape in MATRICES]


def muon_of(weights: list[Tensor], **options: Any) -> Any:
    from qkv.training.muon import Muon

    return Muon([nn.Parameter(weight.clone()) for weight in weights], lr=0.02, **options)


def weights_of(muon: Any) -> list[Tensor]:
    return muon.param_groups[0]["params"]


def momentum_of(muon: Any) -> list[Tensor]:
    return [muon.state[weight]["momentum_buffer"] for weight in weights_of(muon)]


def step(
    muon: Any, gradients: list[Tensor], divisor: float = 1.0, bad: float = 0.0, kernels: bool = True
) -> None:
    """A step by the kernels, or by PyTorch's operations alone; neither waits for the device."""
    from qkv.training.kernels import muon_kernels

    for weight, gradient in zip(weights_of(muon), gradients, strict=True):
        weight.grad = gradient

    muon.grad_scale = torch.tensor(divisor, device="cuda")
    muon.found_inf = torch.tensor(bad, device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        if not kernels:
            patch.setattr(muon_kernels, "supports", lambda *tensors: False)
        with no_waiting():
            muon.step()


def assert_same_update(muon: Any, plain: Any, start: list[Tensor]) -> None:
    """Equal momentum but for float32's rounding, and equal changes but for bf16's."""
    for mine, right in zip(momentum_of(muon), momentum_of(plain), strict=True):
        assert relative_error(mine, right) < 1e-6
        torch.testing.assert_close(mine, right, rtol=1e-6, atol=1e-6)
    for mine, right, before in zip(weights_of(muon), weights_of(plain), start, strict=True):
        assert relative_error(mine - before, right - before) < 1e-2


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("divisor", [1.0, 1024.0, 3.7])
def test_muons_kernels_equal_its_operations(
    nesterov: bool, weight_decay: float, divisor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has gradients at other addresses, and one of the steps is bad."""
    from qkv.training.kernels import muon_kernels

    launches: list[int] = []
    apply_update = muon_kernels.apply_update

    def counted(*args: Any) -> None:
        launches.append(len(args[0]))
        apply_update(*args)

    monkeypatch.setattr(muon_kernels, "apply_update", counted)
    start = matrices(0)
    muon = muon_of(start, nesterov=nesterov, weight_decay=weight_decay)
    plain = muon_of(start, nesterov=nesterov, weight_decay=weight_decay)
    kept: list[list[Tensor]] = []  # so that no address is used again
    for number in range(1, 5):
        gradients = [divisor * gradient for gradient in matrices(number)]
        kept.append(gradients)
        bad = float(number == 3)
        step(muon, gradients, divisor, bad)
        step(plain, gradients, divisor, bad, kernels=False)

    assert launches == [3, 2, 2, 1] * 4
    assert_same_update(muon, plain, start)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("nesterov", [True, False])
def test_a_bad_step_of_muons_kernels_changes_no_bit(nesterov: bool, poison: float) -> None:
    start = matrices(0)
    for weight in start:
        weight[0, :4] = torch.tensor([0.0, -0.0, 1e-40, -1e38], device="cuda")

    muon = muon_of(start, nesterov=nesterov, weight_decay=0.1)
    gradients = [torch.full_like(weight, poison) for weight in start]
    step(muon, gradients, divisor=poison, bad=1.0)
    for weight, before in zip(weights_of(muon), start, strict=True):
        assert torch.equal(weight.view(torch.int32), before.view(torch.int32))
    for momentum in momentum_of(muon):
        assert not momentum.view(torch.int32).any()

    # After a good step, too
    step(muon, matrices(1))
    weights = [weight.detach().clone() for weight in weights_of(muon)]
    momenta = [momentum.clone() for momentum in momentum_of(muon)]
    step(muon, gradients, divisor=poison, bad=1.0)
    for now, before in zip(weights_of(muon) + momentum_of(muon), weights + momenta, strict=True):
        assert torch.equal(now.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("kind", ["not aligned", "not contiguous"])
def test_muon_takes_gradients_of_any_layout(kind: str) -> None:
    start = matrices(0)
    muon = muon_of(start)
    plain = muon_of(start)
    gradients: list[Tensor] = []
    for gradient in matrices(1):
        if kind == "not contiguous":
            gradients.append(gradient.T.contiguous().T)
        else:
            memory = torch.empty(gradient.numel() + 1, device="cuda")
            gradients.append(memory[1:].view_as(gradient).copy_(gradient))

    step(muon, gradients)
    step(plain, matrices(1), kernels=False)
    assert_same_update(muon, plain, start)


def test_muons_kernels_change_the_versions_of_what_they_write() -> None:
    """Caches of packed weights and autograd's check of saved tensors read them."""
    muon = muon_of(matrices(0))
    step(muon, matrices(1))
    versions = [tensor._version for tensor in weights_of(muon) + momentum_of(muon)]
    step(muon, matrices(2))
    for tensor, before in zip(weights_of(muon) + momentum_of(muon), versions, strict=True):
        assert tensor._version > before


def test_muon_resumes_from_its_state_bit_for_bit() -> None:
    muon = muon_of(matrices(0), weight_decay=0.1)
    step(muon, matrices(1))
    again = muon_of(weights_of(muon), weight_decay=0.1)
    for weight, momentum in zip(weights_of(again), momentum_of(muon), strict=True):
        again.state[weight]["momentum_buffer"] = momentum.clone()

    step(muon, matrices(2))
    step(again, matrices(2))
    for mine, right in zip(weights_of(again), weights_of(muon), strict=True):
        assert torch.equal(mine, right)
    for mine, right in zip(momentum_of(again), momentum_of(muon), strict=True):
        assert torch.equal(mine, right)


def test_a_step_of_muon_can_be_captured() -> None:
    start = matrices(0)
    muon = muon_of(start)
    plain = muon_of(start)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(muon, matrices(1))

    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        muon.step()

    graph.replay()
    for _ in range(2):
        step(plain, matrices(1), kernels=False)

    assert_same_update(muon, plain, start)
