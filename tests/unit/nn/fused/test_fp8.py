"""FP8: the arithmetic of rounding and scales, which a CPU computes like a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.nn.fused import fp8
from qkv.nn.fused.fp8 import E4M3, E5M2, product, quantised


def relative_error(value: Tensor, expected: Tensor) -> float:
    value = value.detach().double()
    expected = expected.detach().double()
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "bits"), [(E4M3, 3), (E5M2, 2)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rounding_keeps_the_bits_of_the_mantissa(dtype: Any, bits: int, size: float) -> None:
    torch.manual_seed(0)
    x = size * (1 + torch.rand(64, 32))  # near the largest: no number is subnormal
    rounded = quantised(x, dtype)
    assert rounded.values.dtype == dtype
    assert rounded.values.float().abs().max() == torch.finfo(dtype).max
    error = (rounded.dequantised() - x).abs() / x
    assert float(error.max()) <= 2.0 ** -(bits + 1) * 1.001


def test_numbers_beyond_a_given_scale_saturate() -> None:
    scale = torch.tensor(1.0)
    rounded = quantised(torch.tensor([[500.0, -1e9, 448.0]]), E4M3, scale)
    assert rounded.values.float().tolist() == [[448.0, -448.0, 448.0]]


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert (quantised(torch.zeros(4, 4)).dequantised() == 0).all()


def test_a_product_has_the_scales_of_both_factors() -> None:
    torch.manual_seed(0)
    a = 300 * torch.randn(16, 64)
    b = torch.randn(24, 64) / 700
    result = product(quantised(a), quantised(b, E5M2), torch.float32)
    exact = quantised(a).dequantised() @ quantised(b, E5M2).dequantised().T
    torch.testing.assert_close(result, exact)
    assert relative_error(result, a @ b.T) < 0.06


def test_the_error_of_a_gpu_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(ValueError, match=r"fp8: NVIDIA A100 has no FP8 .*8\.0, expected 8\.9"):
        fp8.check_supported(torch.device("cuda"))

    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    fp8.check_supported(torch.device("cuda"))
