"""A linear layer: x W^T + b. `F.linear` is the definition; the others give the same, faster.

Decoding multiplies a few rows by every matrix of the model, so each matrix is read once for little
work. On a CPU PyTorch's usual kernels then reach half the speed of memory; oneDNN's, on the very
same tensors, come near it; for the fewest rows the kernels in C (qkv.nn.native) reach it. Training
multiplies many rows: on some CPUs oneDNN does that faster, too (onednn_product).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.linear import few_rows, gemv, onednn, onednn_product
from qkv.nn.linear.frozen_matrix import FrozenMatrix
from qkv.nn.linear.onednn import as_prepacked
from qkv.nn.native import native_library
from qkv.nn.native.native_library import float_product, plain_vector
from qkv.nn.transforms import in_a_transform
from qkv.nn.unchanged import fused

Matrix = Tensor | FrozenMatrix

FEW_ROWS = 1024  # more rows are work enough for any kernel


def linear(
    x: Float[Tensor, "*n E"],
    weight: Matrix,
    bias: Float[Tensor, "N"] | None = None,
    rows: slice | None = None,
) -> Float[Tensor, "*n R"]:
    """x W^T + b, or only the given rows of W and b."""
    if rows is not None and bias is not None:
        bias = bias[rows]

    if isinstance(weight, FrozenMatrix):
        return weight.linear(x, bias, rows)

    if rows is not None:
        weight = weight[rows]

    if gemv.supports(x, weight):
        return gemv.linear_row(x, weight, bias)
    if few_rows.supports(x, weight):
        return few_rows.linear_rows(x, weight, bias)
    if aligned_supports(x, weight):
        return aligned_linear(x, weight, bias)
    if onednn_supports(x, weight) and plain_vector(bias, len(weight)):
        return cpu_rows(x, weight, bias)
    if onednn_product.supports(x, weight) and plain_vector(bias, len(weight)):
        return onednn_product.linear(x, weight, bias)

    return F.linear(x, weight, bias)


def cpu_rows(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Float[Tensor, "N"] | None
) -> Float[Tensor, "*n N"]:
    """Rows that `onednn_supports` accepts, by the kernel in C or by oneDNN."""
    if native_supports(x, weight):
        return native_rows(x, weight, bias)

    return onednn.multiply(x, as_prepacked(weight), bias)


def native_supports(x: Tensor, weight: Tensor) -> bool:
    """True for so few of the rows that `onednn_supports` accepts that the kernel in C is faster."""
    if x.numel() > native_library.most_float_rows() * x.shape[-1]:
        return False

    # A subclass may have no memory
    return type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)


def native_rows(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Tensor | None
) -> Float[Tensor, "*n N"]:
    """The fewest rows on a CPU, by the kernel in C."""
    kernels = native_library.library()
    assert kernels is not None
    N, E = weight.shape
    rows = x.reshape(-1, E).contiguous()
    return kernels.multiply(float_product(weight, bias), rows, N).view(*x.shape[:-1], N)


def onednn_supports(x: Tensor, weight: Tensor) -> bool:
    """True for a few float32 rows on a CPU, without autograd."""
    if torch.is_grad_enabled() or not x.is_cpu or not weight.is_cpu:
        return False
    if in_a_transform() or torch.is_autocast_enabled("cpu"):
        return False
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False

    return 0 < x.numel() <= FEW_ROWS * x.shape[-1] and weight.is_contiguous()


def aligned_supports(x: Tensor, weight: Tensor) -> bool:
    """True for a vocabulary on a GPU whose size is not a multiple of 8, without autograd."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    if torch.is_autocast_enabled("cuda"):
        return False

    half = x.is_cuda and x.dtype == weight.dtype and x.dtype.itemsize == 2
    return half and weight.shape[0] > 1024 and weight.shape[0] % 8 != 0


def aligned_linear(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Tensor | None
) -> Float[Tensor, "*n N"]:
    """Split the vocabulary at a multiple of 64, so that most of it uses an aligned GEMM."""
    flat = x.flatten(0, -2)  # (M, E)
    N = weight.shape[0]
    output = x.new_empty(len(flat), -(-N // 64) * 64)[:, :N]
    split = N // 64 * 64
    for part in (slice(0, split), slice(split, N)):
        torch.mm(flat, weight[part].t(), out=output[:, part])

    if bias is not None:
        output = output + bias

    return output.unflatten(0, x.shape[:-1])


class LowRankAdapters(Protocol):
    """The adapters of a layer, as `qkv.nn.lora.Adapters` defines them."""

    def __call__(self, x: Tensor, y: Tensor, rows: range) -> Tensor: ...

    def parts(self) -> list[tuple[str, Any]]: ...


@fused
class Linear(nn.Linear):
    """A linear layer, initialised as PyTorch's; it may have low-rank adapters (qkv.nn.lora).

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        bias: Add a learned bias.

    Example:
        >>> import torch
        >>> Linear(4, 6)(torch.zeros(2, 4)).shape
        torch.Size([2, 6])
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.adapters: LowRankAdapters | None = None

    def forward(self, x: Float[Tensor, "*n E"], rows: slice | None = None) -> Float[Tensor, "*n R"]:
        """x W^T + b, or only the given rows of W and b."""
        y = linear(x, self.weight, self.bias, rows)
        if self.adapters is None:
            return y

        return self.adapters(x, y, range(self.out_features)[rows or slice(None)])
