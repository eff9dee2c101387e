"""Products of many rows on AMD's processors with AVX-512, by oneDNN: forward, and the gradients.

PyTorch multiplies large float32 matrices with Intel's MKL, which reaches half of oneDNN's speed
there (benchmarks/RESULTS.md, "Matrix products of training on a CPU").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.machine import AMD, cpu_vendor
from qkv.nn.linear.onednn import multiply
from qkv.nn.transforms import in_a_transform

LEAST_WORK = 2**22  # multiplications that are worth the calls


@lru_cache(maxsize=1)
def faster_than_mkl() -> bool:
    """True on a processor where oneDNN multiplies large float32 matrices faster than MKL."""
    if not torch.backends.mkl.is_available() or not torch.backends.mkldnn.is_available():
        return False

    return cpu_vendor() == AMD and "AVX512" in torch.backends.cpu.get_cpu_capability()


def supports(a: Tensor, b: Tensor) -> bool:
    """True for a b^T of large float32 tensors on such a processor; b must be without gaps."""
    if not a.is_cpu or not b.is_cpu or in_a_transform() or not faster_than_mkl():
        return False
    if type(a) is not Tensor or type(b) not in (Tensor, nn.Parameter):
        return False  # a subclass may override the product
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    if b.dim() != 2 or a.shape[-1:] != b.shape[1:] or not without_gaps(b):
        return False
    if a.numel() * b.shape[0] < LEAST_WORK or not torch.backends.mkldnn.enabled:
        return False

    return not torch.is_autocast_enabled("cpu")


def without_gaps(matrix: Float[Tensor, "M N"]) -> bool:
    """True if the rows, or the columns, lie end to end in memory."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()


def linear(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Float[Tensor, "N"] | None
) -> Float[Tensor, "*n N"]:
    """x W^T + b, with gradients."""
    rows = x.reshape(-1, x.shape[-1])  # (M, E)
    output: Tensor = OneDNNLinear.apply(rows, weight, bias)
    return output.view(*x.shape[:-1], len(weight))


def product(
    a: Float[Tensor, "M K"], b: Float[Tensor, "K N"], out: Float[Tensor, "M N"] | None = None
) -> Float[Tensor, "M N"]:
    """a @ b without gradients, by oneDNN where it is faster."""
    # oneDNN copies a transposed `a`: if that is the wider matrix, compute the transposed product
    if a.stride(0) == 1 and a.shape[0] > b.shape[1] and supports(b.t(), a):
        result = multiply(b.t(), a).t().contiguous()
    elif supports(a, b.t()):
        result = multiply(a, b.t())
    else:
        return torch.mm(a, b, out=out)

    return result if out is None else out.copy_(result)


class OneDNNLinear(torch.autograd.Function):
    """x W^T + b for rows; second derivatives are PyTorch's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "M E"],
        weight: Float[Tensor, "N E"],
        bias: Float[Tensor, "N"] | None,
    ) -> Float[Tensor, "M N"]:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Float[Tensor, "M N"]) -> Any:
        x, weight = ctx.saved_tensors
        slope = upstream[0]
        matmul = torch.mm if torch.is_grad_enabled() else product
        d_x: Tensor | None = None
        d_weight: Tensor | None = None
        d_bias: Tensor | None = None
        if weight is not None:
            d_x = matmul(slope, weight)
        if x is not None:
            d_weight = matmul(slope.t(), x)
        if ctx.needs_input_grad[2]:
            d_bias = slope.sum(0)

        return d_x, d_weight, d_bias
