"""The chunked loss equals torch's cross-entropy and never holds the logits of all positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.data.batches.batch import IGNORE
from qkv.training import fp8_loss, loss
from qkv.training.loss import loss_sum

N = 40
E = 5
V = 31


def random_inputs(
    dtype: torch.dtype = torch.float64, *, bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    features = torch.randn(N, E, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, E, dtype=dtype, requires_grad=True)
    targets = torch.randint(V, (N,))
    targets[::5] = IGNORE
    bias_vector = None
    if bias:
        bias_vector = torch.randn(V, dtype=dtype, requires_grad=True)

    return features, weight, bias_vector, targets


def gradients(value: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    tensors = [tensor for tensor in inputs if tensor is not None]
    return list(torch.autograd.grad(value, tensors))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 1, 7, 8, N, 100])
def test_values_and_gradients_equal_cross_entropy(
    chunk: int | None, smoothing: float, bias: bool
) -> None:
    features, weight, b, targets = random_inputs(bias=bias)
    ours = loss_sum(features, weight, b, targets, smoothing=smoothing, chunk=chunk)
    theirs = F.cross_entropy(
        F.linear(features, weight, b),
        targets,
        reduction="sum",
        label_smoothing=smoothing,
        ignore_index=IGNORE,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, expected in zip(
        gradients(3.0 * ours, features, weight, b),
        gradients(3.0 * theirs, features, weight, b),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


@given(
    st.integers(1, 12),
    st.integers(2, 9),
    st.integers(1, 15),
    st.floats(0, 0.9),
    st.integers(0, 2**31),
)
def test_any_shape_any_chunk(n: int, v: int, chunk: int, smoothing: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(2, n, 3, generator=draw, dtype=torch.float64)
    weight = 5 * torch.randn(v, 3, generator=draw, dtype=torch.float64)
    targets = torch.randint(v, (2, n), generator=draw)
    targets[torch.rand(2, n, generator=draw) < 0.3] = IGNORE
    expected = F.cross_entropy(
        (features @ weight.T).flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    ours = loss_sum(features, weight, None, targets, smoothing=smoothing, chunk=chunk)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_only_inputs_that_require_it_get_a_gradient() -> None:
    features, weight, b, targets = random_inputs()
    expected = gradients(loss_sum(features, weight, b, targets), features, weight, b)
    for wanted in ([0], [1], [2], [0, 2]):
        tensors = [tensor.detach() for tensor in (features, weight, b)]
        inputs = [tensors[number].requires_grad_() for number in wanted]
        actual = gradients(loss_sum(*tensors, targets, chunk=7), *inputs)
        for gradient, number in zip(actual, wanted, strict=True):
            torch.testing.assert_close(gradient, expected[number])


def test_positions_without_a_target_have_no_influence() -> None:
    features, weight, b, targets = random_inputs()
    has_target = targets != IGNORE
    loss_of_all = loss_sum(features, weight, b, targets)
    expected = loss_sum(features[has_target], weight, b, targets[has_target])
    torch.testing.assert_close(loss_of_all, expected)
    (slope,) = gradients(loss_of_all, features)
    assert (slope[~has_target] == 0).all()
    assert (slope[has_target] != 0).any(1).all()
    assert loss_sum(features, weight, b, torch.full((N,), IGNORE)).item() == 0


def test_large_logits_do_not_overflow() -> None:
    features, weight, _, targets = random_inputs(torch.float32)
    ours = loss_sum(1e4 * features, weight, None, targets)
    expected = F.cross_entropy(F.linear(1e4 * features, weight).double(), targets, reduction="sum")
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0)
    assert all(slope.isfinite().all() for slope in gradients(ours, features, weight))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_probabilities_that_underflow_have_the_loss_and_slopes_of_float64(smoothing: float) -> None:
    features, weight, b, targets = random_inputs(torch.float32)
    inputs = [(100 * features).detach().requires_grad_(), weight, b]
    precise = [tensor.detach().double().requires_grad_() for tensor in inputs]
    assert (F.linear(*inputs).log_softmax(1) < -110).float().mean() > 0.5  # 0 in float32
    ours = loss_sum(*inputs, targets, smoothing=smoothing)
    expected = loss_sum(*precise, targets, smoothing=smoothing)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=0)
    for mine, theirs in zip(gradients(ours, *inputs), gradients(expected, *precise), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


def test_weights_more_precise_than_the_features_keep_their_dtype_in_the_gradient() -> None:
    """Float64 weights with float32 features stand for float32 weights with bf16 features."""
    features, weight, b, targets = random_inputs()
    coarse = features.detach().float().requires_grad_()
    ours = loss_sum(coarse, weight, b, targets, chunk=7)
    d_features, d_weight, d_bias = gradients(ours, coarse, weight, b)
    assert d_features.dtype == torch.float32
    assert d_weight.dtype == torch.float64
    assert d_bias.dtype == torch.float64
    theirs = F.cross_entropy(F.linear(features, weight, b), targets, reduction="sum")
    for mine, expected in zip(
        (d_features, d_weight, d_bias), gradients(theirs, features, weight, b), strict=True
    ):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-4)


class RecordSizes(TorchDispatchMode):
    """Record the number of elements of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.sizes += [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


def test_the_logits_of_all_positions_are_never_computed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, weight, b, targets = random_inputs()
    monkeypatch.setattr(loss, "CHUNK_LOGITS", 4 * V)  # the default size of a chunk
    with RecordSizes() as recorder:
        loss_sum(features, weight, b, targets, smoothing=0.1).backward()
    assert features.grad is not None
    assert 4 * V in recorder.sizes, "the logits of one chunk"
    assert max(recorder.sizes) <= max(4 * V, V * E, N * E) < N * V


def test_nothing_of_size_n_times_v_is_stored_for_the_backward_pass() -> None:
    features, weight, b, targets = random_inputs()
    stored: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        stored.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_sum(features, weight, b, targets, chunk=4)

    assert stored
    assert max(stored) <= max(V * E, N * E)


@pytest.mark.parametrize(("count", "chunk"), [(N, 16), (N, 7), (33, None), (1, None), (64, 32)])
def test_fp8_products_get_sizes_that_they_take(
    monkeypatch: pytest.MonkeyPatch, count: int, chunk: int | None
) -> None:
    """Positions and chunks are rounded up to multiples of 16, and the loss stays the same."""

    class StandIn:
        """The exact loss, which insists on the sizes of FP8."""

        @staticmethod
        def apply(features: Tensor, weight: Tensor, targets: Tensor, *options: Any) -> Any:
            smoothing, rows = options
            assert (len(features) % 16, len(targets) % 16, rows % 16) == (0, 0, 0)
            return loss.ChunkedLoss.apply(features, weight, None, targets, smoothing, rows, None)

    monkeypatch.setattr(fp8_loss, "Fp8Loss", StandIn)
    monkeypatch.setattr(fp8_loss, "supports", lambda *arguments: True)
    features = torch.randn(count, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, 16, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(V, (count,))

    exact = loss_sum(features, weight, None, targets, smoothing=0.1)
    padded = loss_sum(features, weight, None, targets, smoothing=0.1, chunk=chunk, fp8=True)
    torch.testing.assert_close(padded, exact)
    expected = gradients(exact, features, weight)
    torch.testing.assert_close(gradients(padded, features, weight), expected)
