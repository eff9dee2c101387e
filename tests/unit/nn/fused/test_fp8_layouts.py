"""Matrices in FP8 in both layouts: what the kernel must give, as PyTorch's operations compute it.

tests/gpu/test_fp8.py compares the kernel with these operations.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from qkv.nn.fused.fp8 import E4M3, E5M2
from qkv.nn.fused.fp8_layouts import APPROXIMATIONS, activated, both_layouts, through_activation


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("M", [1, 16, 37])
def test_columns_are_the_transpose_and_end_with_zeros(M: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    result = both_layouts(torch.randn(M, 32).bfloat16(), torch.tensor(0.1), dtype)
    assert result.rows.dtype == result.columns.dtype == dtype
    assert result.columns.shape == (32, -(-M // 16) * 16)
    assert result.columns.is_contiguous()
    assert torch.equal(result.columns[:, :M].float(), result.rows.float().T)
    assert not result.columns[:, M:].float().any()


@pytest.mark.parametrize("activation", APPROXIMATIONS)
def test_the_activation_is_rounded_once(activation: str) -> None:
    torch.manual_seed(0)
    hidden = (2 * torch.randn(64, 32)).bfloat16()
    exact = F.gelu(hidden.double(), approximate=APPROXIMATIONS[activation])
    scale = exact.abs().max().float() / 448
    error = (activated(hidden, scale, activation).by_rows().dequantised() - exact).abs()
    # 3 bits of mantissa after the first, or the steps of the smallest numbers
    assert float((error - exact.abs() / 2**4 - scale * 2**-10).max()) < 1e-6


@pytest.mark.parametrize("activation", APPROXIMATIONS)
def test_a_gradient_is_multiplied_by_the_derivative(activation: str) -> None:
    torch.manual_seed(0)
    hidden = (2 * torch.randn(64, 32)).bfloat16()
    gradient = torch.randn(64, 32).bfloat16() / 1000
    wide = hidden.double().requires_grad_()
    F.gelu(wide, approximate=APPROXIMATIONS[activation]).backward(gradient.double())
    exact = wide.grad
    assert exact is not None
    scale = exact.abs().max().float() / 57344
    options = {"dtype": E5M2, "activation": activation}
    result, sums = through_activation(gradient, hidden, scale, with_sums=True, **options)
    error = (result.by_rows().dequantised() - exact).abs()
    assert float((error - exact.abs() / 2**3 - scale * 2**-17).max()) < 1e-8
    assert sums is not None
    torch.testing.assert_close(sums, exact.sum(0).float(), rtol=1e-4, atol=1e-7)
    assert through_activation(gradient, hidden, scale, with_sums=False, **options)[1] is None


@pytest.mark.parametrize(("dtype", "most"), [(E4M3, 448), (E5M2, 57344)])
def test_numbers_beyond_the_scale_saturate(dtype: torch.dtype, most: float) -> None:
    x = torch.tensor([[1e30, -1e30, 0.0, 1.0]])
    result = both_layouts(x, torch.tensor(1.0), dtype)
    assert result.rows.float().tolist() == [[most, -most, 0.0, 1.0]]
    assert result.columns[:, 0].float().tolist() == [most, -most, 0.0, 1.0]
