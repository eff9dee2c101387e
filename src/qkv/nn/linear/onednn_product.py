"""Matrix products on AMD's processors with AVX-512, by oneDNN: forward, and the gradients.

PyTorch multiplies large float32 matrices with Intel's MKL, which reaches half of oneDNN's speed
there (benchmarks/RESULTS.md, "Matrix products of training on a CPU").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from qkv.machine import cpu_vendor

LEAST_WORK = 2**22  # multiplications that are worth the calls


@lru_cache(maxsize=1)
def faster_than_mkl() -> bool:
    """True on a processor where oneDNN multiplies large float32 matrices faster than MKL."""
    if cpu_vendor() != "AuthenticAMD" or not torch.backends.mkldnn.is_available():
        return False

    return "AVX512" in torch.backends.cpu.get_cpu_capability()


def supports(a: Tensor, b: Tensor) -> bool:
    """True for two large float32 tensors on such a processor, of equal last dimensions."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not faster_than_mkl():
        return False
    if type(a) is not Tensor or type(b) not in (Tensor, nn.Parameter):
        return False  # a subclass may compute otherwise
    if not a.is_cpu or not b.is_cpu or a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    if a.numel() * b.shape[0] < LEAST_WORK or not torch.backends.mkldnn.enabled:
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():
        return False

    return forward_ad._current_level < 0  # no forward-mode derivatives


def linear(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Float[Tensor, "N"] | None
) -> Float[Tensor, "*n N"]:
    """x W^T + b, with gradients."""
    output: Tensor = OneDNNLinear.apply(x, weight, bias)
    return output


def product(
    a: Float[Tensor, "M K"], b: Float[Tensor, "K N"], out: Float[Tensor, "M N"] | None = None
) -> Float[Tensor, "M N"]:
    """a @ b without gradients, by oneDNN where it is faster."""
    if not supports(a, b.t()):
        return torch.mm(a, b, out=out)

    # oneDNN copies a transposed `a`: if that is the wider matrix, compute the transposed product
    if a.stride(0) == 1 and a.shape[0] > b.shape[1]:
        result = multiply(b.t(), a).t().contiguous()
    else:
        result = multiply(a, b.t())

    return result if out is None else out.copy_(result)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN's kernel."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class OneDNNLinear(torch.autograd.Function):
    """x W^T + b; second derivatives are PyTorch's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*n E"],
        weight: Float[Tensor, "N E"],
        bias: Float[Tensor, "N"] | None,
    ) -> Float[Tensor, "*n N"]:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slope = upstream[0]
        flat = slope.flatten(0, -2)  # (M, N)
        rows = x.flatten(0, -2)  # (M, E)
        multiplied = torch.mm if torch.is_grad_enabled() else product
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad

        d_x: Tensor | None = None
        d_weight: Tensor | None = None
        d_bias: Tensor | None = None
        if needs_x:
            d_x = multiplied(flat, weight).view(x.shape)
        if needs_weight:
            d_weight = multiplied(flat.t(), rows)
        if needs_bias:
            d_bias = flat.sum(0)

        return d_x, d_weight, d_bias
