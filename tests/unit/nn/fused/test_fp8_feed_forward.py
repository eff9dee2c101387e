"""The feed-forward layer in FP8 equals its definition within the error of 8 bits."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.models import GPT, GPTConfig
from qkv.nn.feed_forward import FeedForward
from qkv.nn.fused import cublaslt, fp8_feed_forward, fused_feed_forward
from qkv.nn.fused.fp8_feed_forward import Fp8FeedForward, install, supports_layer
from qkv.nn.hooks import add_hook
from qkv.nn.lora import attach_adapters
from qkv.nn.stack_config import Activation, AdapterConfig
from qkv.training.objective import Objective

WIDTH = 64
HIDDEN = 160
OUTPUT_ERROR = 0.08
"""Four matrices are rounded to 3 bits of mantissa, each by 2.7% on average."""
GRADIENT_ERROR = 0.12
"""The gradient and the slope are rounded to 2 bits of mantissa."""


def relative_error(value: Tensor, expected: Tensor) -> float:
    value = value.detach().double()
    expected = expected.detach().double()
    return float((value - expected).norm() / expected.norm())


def new_layer(activation: Activation = "gelu_tanh", *, bias: bool = True) -> FeedForward:
    torch.manual_seed(0)
    return FeedForward(WIDTH, HIDDEN, activation, bias=bias).bfloat16()


def apply(layer: FeedForward, x: Tensor) -> Tensor:
    up = layer.up
    down = layer.down
    result: Tensor = Fp8FeedForward.apply(
        x, up.weight, up.bias, down.weight, down.bias, layer.activation
    )
    return result


def errors(layer: FeedForward, x: Tensor, gradient: Tensor) -> tuple[float, list[float]]:
    """Relative errors of the output, and of the gradients of the input and the parameters."""
    exact = deepcopy(layer).double()
    wide = x.double().requires_grad_()
    x = x.requires_grad_()
    result = apply(layer, x)
    expected = exact(wide)
    gradients = torch.autograd.grad(result, [x, *layer.parameters()], gradient)
    right = torch.autograd.grad(expected, [wide, *exact.parameters()], gradient.double())
    pairs = zip(gradients, right, strict=True)

    return relative_error(result, expected), [relative_error(*pair) for pair in pairs]


def use_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers of any width use FP8 on a CPU, too."""
    from qkv.nn.fused import fp8_feed_forward

    monkeypatch.setattr(fp8_feed_forward, "FEWEST_COLUMNS", 16)
    monkeypatch.setattr(fp8_feed_forward, "supports", lambda layer, x: layer.training)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("T", [64, 61])
def test_output_and_gradients_equal_the_definitions(
    T: int, bias: bool, activation: Activation
) -> None:
    layer = new_layer(activation, bias=bias)
    x = torch.randn(3, T, WIDTH).bfloat16()
    gradient = torch.randn(3, T, WIDTH).bfloat16()
    of_output, of_gradients = errors(layer, x, gradient)
    assert of_output < OUTPUT_ERROR
    assert max(of_gradients) < GRADIENT_ERROR


@pytest.mark.parametrize("of_x", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("of_gradient", [1e-9, 1e6])
def test_scales_follow_the_numbers(of_x: float, of_gradient: float) -> None:
    layer = new_layer(bias=False)
    with torch.no_grad():
        layer.up.weight /= of_x  # beyond a few units GELU has a kink, where errors change the slope

    x = of_x * torch.randn(2, 50, WIDTH)
    gradient = of_gradient * torch.randn(2, 50, WIDTH)
    of_output, of_gradients = errors(layer, x.bfloat16(), gradient.bfloat16())
    assert of_output < OUTPUT_ERROR
    assert max(of_gradients) < GRADIENT_ERROR


def test_rows_of_small_gradients_keep_their_precision() -> None:
    """One row in 100 has a gradient 1,000 times as large: e5m2 reaches far down."""
    layer = new_layer()
    x = torch.randn(1, 100, WIDTH).bfloat16().requires_grad_()
    gradient = torch.randn(1, 100, WIDTH).bfloat16()
    gradient[:, 0] *= 1000
    exact = deepcopy(layer).double()
    wide = x.detach().double().requires_grad_()
    (d_x,) = torch.autograd.grad(apply(layer, x), x, gradient)
    (expected,) = torch.autograd.grad(exact(wide), wide, gradient.double())
    assert relative_error(d_x[:, 1:], expected[:, 1:]) < GRADIENT_ERROR


def test_the_bound_of_the_hidden_layer_holds_for_rows_parallel_to_weights() -> None:
    """The worst case of Cauchy and Schwarz: a number beyond the bound would be cut off."""
    layer = new_layer(bias=False)
    with torch.no_grad():
        layer.up.weight *= 30

    x = 5 * layer.up.weight.detach()[None]  # (1, F, E)
    exact = deepcopy(layer).double()(x.double())
    assert relative_error(apply(layer, x), exact) < OUTPUT_ERROR


def test_zeros_stay_zero() -> None:
    layer = new_layer(bias=False)
    x = torch.zeros(1, 32, WIDTH).bfloat16().requires_grad_()
    result = apply(layer, x)
    assert not result.any()
    for gradient in torch.autograd.grad(result, [x, *layer.parameters()], torch.zeros_like(x)):
        assert not gradient.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_reaches_every_result(value: float) -> None:
    """So that a bad step is noticed: an 8-bit number would silently be the largest."""
    layer = new_layer()
    x = torch.randn(1, 32, WIDTH).bfloat16()
    bad = x.clone()
    bad[0, 3, 5] = value
    assert apply(layer, bad).isnan().all()

    x = x.requires_grad_()
    for gradient in torch.autograd.grad(apply(layer, x), [x, layer.up.weight], bad):
        assert gradient.isnan().all()


def test_the_saved_tensors_take_less_memory_than_in_bf16() -> None:
    layer = new_layer(bias=False)
    sizes: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.nbytes)
        return saved

    M = 4096
    x = torch.randn(1, M, WIDTH).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        apply(layer, x)

    weights = 2 * WIDTH * HIDDEN
    scales = 4 * 4
    assert sum(sizes) == 2 * M * HIDDEN + M * WIDTH + M * HIDDEN + weights + scales


def test_which_layers_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not supports_layer(FeedForward(WIDTH, HIDDEN, "gelu"))  # too narrow
    monkeypatch.setattr(fp8_feed_forward, "FEWEST_COLUMNS", 16)
    assert supports_layer(FeedForward(WIDTH, HIDDEN, "gelu"))
    assert supports_layer(FeedForward(WIDTH, HIDDEN, "gelu_tanh", bias=False))
    assert not supports_layer(FeedForward(WIDTH, HIDDEN, "swiglu"))
    assert not supports_layer(FeedForward(WIDTH, HIDDEN, "relu"))
    assert not supports_layer(FeedForward(WIDTH + 8, HIDDEN, "gelu"))
    assert not supports_layer(FeedForward(WIDTH, HIDDEN + 8, "gelu"))

    class Own(FeedForward):
        """A layer that may compute anything."""

    assert not supports_layer(Own(WIDTH, HIDDEN, "gelu"))
    adapted = FeedForward(WIDTH, HIDDEN, "gelu")
    attach_adapters(adapted, AdapterConfig(rank=2, projections=("up",)))
    assert not supports_layer(adapted)


def test_layers_of_768_columns_and_more_use_it() -> None:
    with torch.device("meta"):
        assert supports_layer(FeedForward(768, 3072, "gelu_tanh"))
        assert not supports_layer(FeedForward(752, 3008, "gelu_tanh"))


def test_a_cpu_uses_the_definition() -> None:
    layer = new_layer()
    assert not fp8_feed_forward.supports(layer, torch.zeros(1, 4096, WIDTH).bfloat16())


def test_installed_it_computes_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use_on_cpu(monkeypatch)
    layer = new_layer()
    x = torch.randn(2, 5, WIDTH).bfloat16()
    expected = layer(x)
    install(layer)
    assert torch.equal(layer(x), apply(layer, x))
    assert not torch.equal(layer(x), expected)
    layer.eval()
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("fp8_first", [True, False])
@pytest.mark.parametrize(("activation", "fused"), [("gelu_tanh", True), ("gelu", False)])
def test_the_fallback_is_the_fused_layer_where_there_is_one(
    activation: Activation, fused: bool, fp8_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublaslt, "available", lambda device: True)
    monkeypatch.setattr(fp8_feed_forward, "FEWEST_COLUMNS", 16)
    layer = new_layer(activation)
    steps = [install, fused_feed_forward.install]
    for step in steps if fp8_first else reversed(steps):
        step(layer)

    forward: Any = vars(layer)["forward"]
    assert forward.func is fp8_feed_forward.fp8_forward
    assert (forward.args[1] is fused_feed_forward.fused_forward) == fused
    x = torch.randn(2, 5, WIDTH).bfloat16()
    assert torch.equal(layer(x), FeedForward.forward(layer, x))


def test_a_copy_computes_with_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    use_on_cpu(monkeypatch)
    layer = new_layer()
    install(layer)
    x = torch.randn(2, 5, WIDTH).bfloat16()
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copy(x), layer(x))
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.zero_()

        assert not copy(x).any()
        assert layer(x).any()


def test_a_hook_on_the_hidden_values_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_feed_forward, "FEWEST_COLUMNS", 16)
    layer = new_layer()
    install(layer)
    seen: list[torch.Size] = []
    with add_hook(layer, "hidden", lambda value, name: seen.append(value.shape)):
        layer(torch.randn(1, 3, WIDTH).bfloat16())

    assert seen == [torch.Size([1, 3, HIDDEN])]


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
@pytest.mark.parametrize("bias", [True, False])
def test_the_compiled_layer_is_one_graph_with_the_same_results(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.nn.feed_forward import FeedForward
    from qkv.nn.fused import fp8_feed_forward

    use_on_cpu(monkeypatch)
    torch.manual_seed(0)
    layer = FeedForward(WIDTH, HIDDEN, "gelu_tanh", bias=bias).bfloat16()
    fp8_feed_forward.install(layer)
    x = torch.randn(2, 37, WIDTH).bfloat16().requires_grad_()
    gradient = torch.randn(2, 37, WIDTH).bfloat16()
    weights = [x, *layer.parameters()]
    expected = layer(x)
    right = torch.autograd.grad(expected, weights, gradient)

    calls: list[str] = []
    for name in ("compute_forward", "compute_backward"):
        monkeypatch.setattr(fp8_feed_forward, name, counted(fp8_feed_forward, name, calls))

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    result = compiled(x)
    assert torch.equal(result, expected)
    for mine, gradient_of in zip(
        torch.autograd.grad(result, weights, gradient), right, strict=True
    ):
        torch.testing.assert_close(mine, gradient_of)

    assert calls == ["compute_forward", "compute_backward"]


def counted(module: Any, name: str, calls: list[str]) -> Any:
    function = getattr(module, name)

    def count(*args: Any) -> Any:
        calls.append(name)
        return function(*args)

    return count


def train(objective: Objective, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for batch in batches:
        optimizer.zero_grad()
        objective(batch).backward()
        optimizer.step()


def test_resumed_training_equals_uninterrupted_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and optimizer are all there is to store: no scale is carried from step to step."""
    from qkv.data.batches.batch import Batch

    use_on_cpu(monkeypatch)
    config = GPTConfig(vocabulary=40, context=16, width=32, depth=2, heads=2, dropout=0.0)
    torch.manual_seed(0)
    batches = []
    for _ in range(4):
        ids = torch.randint(40, (4, 17))
        batches.append(Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous()))

    def new_run() -> tuple[GPT, Objective, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = GPT(config)
        objective = Objective(model, precision="bf16")
        objective.use_fp8()
        return model, objective, torch.optim.AdamW(model.parameters(), lr=1e-2)

    calls: list[str] = []
    counting = counted(fp8_feed_forward, "compute_backward", calls)
    monkeypatch.setattr(fp8_feed_forward, "compute_backward", counting)
    whole, objective, optimizer = new_run()
    names = set(whole.state_dict())
    train(objective, optimizer, batches)
    assert len(calls) == 2 * len(batches)  # every block in every step

    first, objective, optimizer = new_run()
    train(objective, optimizer, batches[:2])
    resumed, objective, other = new_run()
    resumed.load_state_dict(first.state_dict())
    other.load_state_dict(optimizer.state_dict())
    train(objective, other, batches[2:])
    assert set(GPT(config).state_dict()) == names
    for mine, right in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, right)
