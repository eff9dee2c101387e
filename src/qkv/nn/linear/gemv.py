"""One row times a matrix (GEMV) on a GPU in Triton, with norm, bias, activation and residual.

One row times a matrix takes as long as reading the matrix from memory. Norm, bias, activation and
residual are computed in the same kernel, because each kernel of its own would take as long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.decode.dependent_launch import launch_options
from qkv.nn.norm import LayerNorm, RMSNorm

try:
    import triton
    import triton.language as tl

    from qkv.nn.decode.dependent_launch import start_next, wait
    from qkv.nn.linear.epilogue import finished, normalised
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "swiglu": 5, "relu2": 6}
WIDEST = 1024  # up to this width every program normalises the row for itself


def supports(x: Tensor, *weights: Tensor | object) -> bool:
    """True for one row of half precision on a GPU, without autograd; torch.compile fuses itself."""
    return x.numel() == x.shape[-1] and half_precision(x, *weights)


def half_precision(x: Tensor, *weights: Tensor | object) -> bool:
    """True for tensors of half precision on a GPU, without autograd."""
    if triton is None or not x.is_cuda or torch.compiler.is_compiling():
        return False
    if x.dtype not in (torch.bfloat16, torch.float16):
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False

    return all(isinstance(w, Tensor) and w.dtype == x.dtype and w.stride(-1) == 1 for w in weights)


class GemvTile(NamedTuple):
    """What one program computes."""

    rows: int
    """Rows of the matrix."""
    lanes: int
    """Columns that it reads at a time."""
    warps: int


def tile_for(N: int, E: int, *, norm: bool) -> GemvTile:
    """The tile for N rows of E columns, as measured on an H200."""
    whole = triton.next_power_of_2(E)
    if norm:
        return GemvTile(8, whole, 4)
    if N > 16384:
        return GemvTile(4, min(whole, 256), 1)
    if E > 4096:
        return GemvTile(1, 1024, 4)
    if E > 2048:
        return GemvTile(2, whole, 8)

    return GemvTile(2, min(whole, 1024), 4)


def linear_row(
    x: Float[Tensor, "*n E"],
    weight: Float[Tensor, "N E"],
    bias: Float[Tensor, "N"] | None = None,
    *,
    norm: LayerNorm | RMSNorm | None = None,
    activation: int = 0,
    residual: Float[Tensor, "*n N"] | None = None,
) -> Float[Tensor, "*n R"]:
    """residual + activation(norm(x) W^T + bias) of one row.

    Args:
        x: One row.
        weight: With swiglu, the rows of the gate and then those of the gated layer.
        bias: Added to the product.
        norm: Applied to x.
        activation: A value of `ACTIVATIONS`, or 0.
        residual: Added to the result.
    """
    N, E = weight.shape
    if activation == ACTIVATIONS["swiglu"]:
        N //= 2

    if norm is not None and E > WIDEST:
        x = norm_rows(x, norm)
        norm = None

    gain, shift, epsilon = norm_parameters(norm)
    tile = tile_for(N, E, norm=norm is not None)
    output = x.new_empty(*x.shape[:-1], N)
    multiply_row[(triton.cdiv(N, tile.rows),)](
        x, gain, shift, weight, bias, residual, output, N, E, weight.stride(0), epsilon,
        ROWS=tile.rows, LANES=tile.lanes, NORM=norm is not None, SHIFT=shift is not None,
        ACTIVATION=activation, BIAS=bias is not None, RESIDUAL=residual is not None,
        num_warps=tile.warps, **launch_options(),
    )  # fmt: skip

    return output


def norm_rows(x: Float[Tensor, "*n E"], norm: LayerNorm | RMSNorm) -> Float[Tensor, "*n E"]:
    """The norm of every row, in one kernel that may start early."""
    gain, shift, epsilon = norm_parameters(norm)
    E = x.shape[-1]
    output = torch.empty_like(x)
    norm_row[(x.numel() // E,)](
        x, gain, shift, output, E, epsilon,
        LANES=triton.next_power_of_2(E), SHIFT=shift is not None, num_warps=4, **launch_options(),
    )  # fmt: skip

    return output


def norm_parameters(
    norm: LayerNorm | RMSNorm | None,
) -> tuple[Tensor | None, Tensor | None, float]:
    """The gain, the shift and the epsilon of a norm."""
    if norm is None:
        return None, None, 0.0

    shift = norm.bias if isinstance(norm, LayerNorm) else None
    return norm.gain, shift, norm.epsilon


if triton is not None:

    @triton.jit
    def norm_row(  # type: ignore[no-untyped-def]
        x, gain, shift, output, E, epsilon,
        LANES: tl.constexpr, SHIFT: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        dtype: tl.constexpr = output.dtype.element_ty
        e = tl.arange(0, LANES)
        row = tl.program_id(0).to(tl.int64) * E
        g = tl.load(gain + e, mask=e < E, other=0.0)
        s = g
        if SHIFT:
            s = tl.load(shift + e, mask=e < E, other=0.0)

        start_next(PDL)
        wait(PDL)
        y = tl.load(x + row + e, mask=e < E, other=0.0).to(tl.float32)
        y = normalised(y, g, s, E, epsilon, SHIFT, dtype)
        tl.store(output + row + e, y.to(dtype), mask=e < E)

    @triton.jit
    def multiply_row(  # type: ignore[no-untyped-def]
        x, gain, shift, weight, bias, residual, output, N, E, stride, epsilon,
        ROWS: tl.constexpr, LANES: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
        ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """Each program reads ROWS rows of the matrix once; with a norm, all columns at once."""
        dtype: tl.constexpr = output.dtype.element_ty
        GATED: tl.constexpr = ACTIVATION == 5  # swiglu: row n is the gate of row n + N
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        e = tl.arange(0, LANES)
        rows = weight + n[:, None].to(tl.int64) * stride
        up_rows = weight + (n[:, None] + N).to(tl.int64) * stride

        # The first columns of the matrix, before the row is known.
        inside = (n[:, None] < N) & (e[None, :] < E)
        w = tl.load(rows + e[None, :], mask=inside, other=0.0)
        u = w
        if GATED:
            u = tl.load(up_rows + e[None, :], mask=inside, other=0.0)

        g = e
        s = e
        if NORM:
            g = tl.load(gain + e, mask=e < E, other=0.0)
            if SHIFT:
                s = tl.load(shift + e, mask=e < E, other=0.0)

        start_next(PDL)
        wait(PDL)

        total = tl.zeros((ROWS, LANES), tl.float32)
        gated = tl.zeros((ROWS, LANES), tl.float32)
        for first in range(0, E, LANES):
            row = tl.load(x + first + e, mask=first + e < E, other=0.0).to(tl.float32)
            if NORM:
                row = normalised(row, g, s, E, epsilon, SHIFT, dtype)

            total += w.to(tl.float32) * row[None, :]
            if GATED:
                gated += u.to(tl.float32) * row[None, :]

            # The next columns.
            if not NORM:
                column = first + LANES + e[None, :]
                inside = (n[:, None] < N) & (column < E)
                w = tl.load(rows + column, mask=inside, other=0.0)
                if GATED:
                    u = tl.load(up_rows + column, mask=inside, other=0.0)

        y = finished(
            tl.sum(total, 1), tl.sum(gated, 1), bias, residual, n, n, n < N, N, dtype,
            ACTIVATION, BIAS, RESIDUAL,
        )  # fmt: skip
        tl.store(output + n, y.to(dtype), mask=n < N)
