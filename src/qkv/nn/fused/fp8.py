"""Matrix products of 8-bit floating-point numbers (FP8), on GPUs that have them (since 2023).

e4m3 has 3 bits of mantissa and reaches 448, for weights and activations; e5m2 has 2 bits and
reaches 57,344, for gradients. A tensor is divided by a scale, so that its largest number is the
largest of the format; the product is multiplied by the scales of both. Scales are computed on the
device, and the host never waits for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
ALIGNMENT = 16
"""Every size of a product must be a multiple of this."""


class Fp8Tensor(NamedTuple):
    """A matrix as FP8 numbers times a scale."""

    values: Tensor
    scale: Float[Tensor, ""]

    def transposed(self) -> Fp8Tensor:
        """The transposed matrix, copied: both factors of a product are read along their rows."""
        return Fp8Tensor(self.values.T.contiguous(), self.scale)

    def dequantised(self) -> Tensor:
        return self.values.float() * self.scale


def rounded_up(size: int) -> int:
    """The next size that FP8 products take."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def scale_of(x: Tensor, dtype: torch.dtype = E4M3) -> Float[Tensor, ""]:
    """The scale at which the largest number of x is the largest of the format."""
    largest = torch.linalg.vector_norm(x, float("inf")).float()
    return largest.clamp(min=1e-12) / torch.finfo(dtype).max


def quantised(
    x: Float[Tensor, "M K"], dtype: torch.dtype = E4M3, scale: Tensor | None = None
) -> Fp8Tensor:
    """x in FP8, at the given scale or at its own."""
    if scale is None:
        scale = scale_of(x, dtype)

    most = torch.finfo(dtype).max
    return Fp8Tensor((x / scale).clamp(-most, most).to(dtype), scale)


def product(
    a: Fp8Tensor,
    b: Fp8Tensor,
    dtype: torch.dtype,
    *,
    bias: Float[Tensor, "N"] | None = None,
    fast: bool = True,
) -> Float[Tensor, "M N"]:
    """a bᵀ + bias of (M, K) and (N, K).

    Args:
        a: The left factor.
        b: The right factor, by rows.
        dtype: The dtype of the result.
        bias: Added to every row; it has the dtype of the result, which is not float32.
        fast: Sum in the tensor cores alone, whose registers have fewer bits than float32.
    """
    if not a.values.is_cuda:
        result = a.dequantised() @ b.dequantised().T
        return (result if bias is None else result + bias).to(dtype)

    return torch._scaled_mm(
        a.values, b.values.T, a.scale, b.scale, bias, out_dtype=dtype, use_fast_accum=fast
    )


def check_supported(device: torch.device) -> None:
    """Raise if the device cannot multiply FP8 numbers."""
    if device.type != "cuda":
        raise ValueError(f"fp8: expected a GPU with FP8, not {device.type}; leave it out")

    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        name = torch.cuda.get_device_name(device)
        raise ValueError(
            f"fp8: {name} has no FP8 (compute capability {capability[0]}.{capability[1]}, "
            "expected 8.9 or more); leave it out"
        )
