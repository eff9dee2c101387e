"""A linear layer: x W^T + b. `F.linear` is the definition; others do the same faster where they
can.

Decoding multiplies a few rows by every matrix of the model, so each matrix is read once for little
work. On a CPU PyTorch's usual kernels then reach half the speed of memory; oneDNN's, on the very
same tensors, come near it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.linear import decode_block
from qkv.nn.linear.int8 import Int8Matrix
from qkv.nn.linear.onednn import as_prepacked
from qkv.nn.unchanged import fused

if TYPE_CHECKING:
    from qkv.nn.lora import Adapters

Matrix = Tensor | Int8Matrix

FEW_ROWS = 1024  # with more there is work enough for any kernel


def linear(
    x: Float[Tensor, "*n E"],
    weight: Matrix,
    bias: Float[Tensor, "N"] | None = None,
    rows: slice | None = None,
) -> Float[Tensor, "*n R"]:
    """x W^T + b, or only the given rows of W and b."""
    if rows is not None and bias is not None:
        bias = bias[rows]

    if isinstance(weight, Int8Matrix):
        return weight.linear(x, bias, rows)

    if rows is not None:
        weight = weight[rows]

    if decode_block.supports_row(x, weight):
        return decode_block.times(x, weight, bias)
    if wide_supports(x, weight):
        return wide(x, weight, bias)
    if onednn_supports(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, as_prepacked(weight), bias, "none", [], "")

    return F.linear(x, weight, bias)


def onednn_supports(x: Tensor, weight: Tensor) -> bool:
    """A few float32 rows on a CPU, and nobody asks for a gradient."""
    if (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or not x.is_cpu
        or not weight.is_cpu
    ):
        return False
    if (
        x.dtype != torch.float32
        or weight.dtype != torch.float32
        or torch.is_autocast_enabled("cpu")
    ):
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False

    return 0 < x.numel() <= FEW_ROWS * x.shape[-1] and weight.is_contiguous()


def wide_supports(x: Tensor, weight: Tensor) -> bool:
    """A vocabulary on a GPU whose size is no multiple of 8, and nobody asks for a gradient."""
    if (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cuda")
    ):
        return False

    half = x.is_cuda and x.dtype == weight.dtype and x.dtype.itemsize == 2
    return half and weight.shape[0] > 1024 and weight.shape[0] % 8 != 0


def wide(
    x: Float[Tensor, "*n E"], weight: Float[Tensor, "N E"], bias: Tensor | None
) -> Float[Tensor, "*n N"]:
    """The most of its words, in a number that the fast kernels like, and the few others after them."""
    rows, N = x.flatten(0, -2), weight.shape[0]  # (R, E)
    output, most = x.new_empty(len(rows), -(-N // 64) * 64)[:, :N], N // 64 * 64

    for part in (slice(0, most), slice(most, N)):
        torch.mm(rows, weight[part].t(), out=output[:, part])

    return (output if bias is None else output + bias).unflatten(0, x.shape[:-1])


@fused
class Linear(nn.Linear):
    """A layer of a matrix and a bias, made and initialised as PyTorch's own; it may have low-rank
    adapters.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.adapters: Adapters | None = None

    def forward(self, x: Float[Tensor, "*n E"], rows: slice | None = None) -> Float[Tensor, "*n R"]:
        y = linear(x, self.weight, self.bias, rows)
        if self.adapters is None:
            return y

        return self.adapters(x, y, range(self.out_features)[rows or slice(None)])
