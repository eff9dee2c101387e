"""The loss kernel in C: values and derivatives of float64, with every instruction set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.data.batches.batch import IGNORE
from qkv.nn.linear import onednn_product
from qkv.nn.native import native_library
from qkv.nn.native.native_library import AVX512
from qkv.training.kernels import native_loss
from qkv.training.loss import loss_sum, softmax_loss_


@pytest.fixture(autouse=True, params=["AVX2", "AVX512"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of one instruction set."""
    kernels = native_library.library()
    if kernels is None:
        pytest.skip("the kernels were not compiled: there is no C compiler, or no x86-64 processor")
    if request.param == "AVX512" and kernels.instruction_set != AVX512:
        pytest.skip("this processor has no AVX-512 with VNNI")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: str(request.param))
    # It would remember the instruction set
    monkeypatch.setattr(onednn_product, "faster_than_mkl", lambda: False)


def by_the_kernel(logits: Tensor, targets: Tensor, *rest: Tensor | float) -> tuple[Tensor, Tensor]:
    """The loss and the derivative."""
    slope = logits.clone()
    assert native_loss.supports(slope, logits.shape[1], targets)
    return native_loss.softmax_loss_(slope, targets, *rest), slope  # type: ignore[arg-type]


def by_definition(logits: Tensor, targets: Tensor, *rest: Tensor | float) -> tuple[Tensor, Tensor]:
    """The same in float64, which the kernel does not support."""
    slope = logits.double()
    loss = softmax_loss_(slope, slope.shape[1], targets, *rest)  # type: ignore[arg-type]
    return loss, slope


@pytest.mark.parametrize("V", [1, 2, 15, 16, 31, 63, 64, 65, 130, 541])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("size", [1.0, 60.0])
def test_loss_and_derivative_equal_float64(V: int, smoothing: float, size: float) -> None:
    logits, shares = size * torch.randn(23, V), torch.rand(23)
    targets = torch.randint(V, (23,))
    targets[::5] = IGNORE
    loss, slope = by_the_kernel(logits, targets, smoothing, shares)
    expected, expected_slope = by_definition(logits, targets, smoothing, shares)
    assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    assert_close(slope.double(), expected_slope, rtol=1e-5, atol=1e-6)
    assert (slope[::5] == 0).all()


def test_many_rows_are_shared_among_threads(threads: int) -> None:
    logits, targets = torch.randn(1027, 300), torch.randint(300, (1027,))
    loss, slope = by_the_kernel(logits, targets, 0.0)
    expected, expected_slope = by_definition(logits, targets, 0.0)
    assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    assert_close(slope.double(), expected_slope, rtol=1e-5, atol=1e-6)


def test_targets_and_shares_in_any_layout() -> None:
    logits, targets = torch.randn(9, 70), torch.randint(70, (9, 2))[:, 0]
    shares = torch.rand(9, 2, dtype=torch.float64)[:, 1]
    loss, slope = by_the_kernel(logits, targets, 0.1, shares)
    expected, expected_slope = by_definition(logits, targets, 0.1, shares)
    assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    assert_close(slope.double(), expected_slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [1e4, -1e6, 3e38, -3e38])
def test_equal_logits_of_any_size_have_equal_probabilities(offset: float) -> None:
    loss, slope = by_the_kernel(torch.full((3, 70), offset), torch.tensor([0, 40, 69]), 0.0)
    assert_close(loss, 3 * torch.tensor(70.0).log())
    assert_close(slope.sum(1), torch.zeros(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("spread", "offset"), [(0.001, 100.3), (3.0, 1000.3), (3.0, 0.0)])
def test_a_smoothed_loss_is_precise_for_large_logits(spread: float, offset: float) -> None:
    logits, targets = offset + spread * torch.randn(4, 50_257), torch.randint(50_257, (4,))
    loss, _ = by_the_kernel(logits, targets, 0.1)
    expected, _ = by_definition(logits, targets, 0.1)
    assert_close(loss.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("position", [0, 63, 64, 69])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_logit_that_is_not_finite_makes_the_loss_nan(position: int, value: float) -> None:
    logits, targets = torch.randn(5, 70), torch.zeros(5, dtype=torch.int64)
    logits[3, position] = value
    loss, slope = by_the_kernel(logits, targets, 0.0)
    assert loss.isnan()
    assert slope[3].isnan().any()
    assert slope[[0, 1, 2, 4]].isfinite().all()


def test_a_token_without_probability_has_an_infinite_loss_only_as_target() -> None:
    logits = torch.randn(2, 70)
    logits[:, 5] = -torch.inf
    assert by_the_kernel(logits, torch.tensor([1, 2]), 0.0)[0].isfinite()
    assert by_the_kernel(logits, torch.tensor([1, 5]), 0.0)[0] == torch.inf


@pytest.mark.parametrize("target", [-1, 70, 2**40])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    features, weight = torch.randn(2, 8), torch.randn(70, 8, requires_grad=True)
    with pytest.raises(IndexError, match="token ids from 0 to 69"):
        loss_sum(features, weight, None, torch.tensor([0, target]))


@pytest.mark.parametrize(
    "other",
    [
        lambda logits: logits.double(),
        lambda logits: logits.bfloat16(),
        lambda logits: logits[:, ::2],
        lambda logits: logits.to("meta"),
        lambda logits: logits.requires_grad_(),
    ],
)
def test_other_logits_are_left_to_pytorch(other: Callable[[Tensor], Tensor]) -> None:
    targets = torch.zeros(4, dtype=torch.int64)
    assert native_loss.supports(torch.randn(4, 8), 8, targets)
    assert not native_loss.supports(torch.randn(4, 8), 6, targets)  # padded columns
    assert not native_loss.supports(torch.randn(4, 8), 8, targets.int())
    assert not native_loss.supports(torch.randn(4, 8), 8, targets[:3])
    assert not native_loss.supports(torch.randn(4, 8), 8, targets, torch.ones(1))
    logits = other(torch.randn(4, 8))
    assert not native_loss.supports(logits, logits.shape[1], targets)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("targets", [5, 7])
def test_as_many_targets_as_positions(targets: int) -> None:
    features, weight = torch.randn(2, 3, 8), torch.randn(70, 8, requires_grad=True)
    with pytest.raises(ValueError, match="targets: expected 6, one for each position, not"):
        loss_sum(features, weight, None, torch.zeros(targets, dtype=torch.int64))
    with pytest.raises(ValueError, match="shares: expected 6, one for each position, not 1"):
        loss_sum(features, weight, None, torch.zeros(2, 3).long(), shares=torch.ones(1))
