"""One row times a matrix (GEMV) on a GPU in Triton, with norm, bias, activation and residual.

One row times a matrix takes as long as reading the matrix from memory. Norm, bias, activation and
residual are computed in the same kernel, because each kernel of its own would take as long.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.norm import LayerNorm, RMSNorm

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "swiglu": 5, "relu2": 6}
NARROW = 1024  # up to this width every program normalises the row for itself


def supports(x: Tensor, *weights: Tensor | object) -> bool:
    """True for one row of half precision on a GPU, without autograd; torch.compile fuses itself."""
    if triton is None or not x.is_cuda or x.numel() != x.shape[-1] or torch.compiler.is_compiling():
        return False
    if x.dtype not in (torch.bfloat16, torch.float16):
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False

    return all(isinstance(w, Tensor) and w.dtype == x.dtype and w.stride(-1) == 1 for w in weights)


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
    E = weight.shape[1]
    N = weight.shape[0]
    if activation == ACTIVATIONS["swiglu"]:
        N //= 2

    whole = triton.next_power_of_2(E)
    gain = shift = None
    epsilon = 0.0
    if norm is not None:
        gain = norm.gain
        shift = norm.bias if isinstance(norm, LayerNorm) else None
        epsilon = norm.epsilon

    if norm is not None and E > NARROW:
        row = torch.empty_like(x)
        norm_row[(1,)](
            x, gain, shift, row, E, epsilon, LANES=whole, SHIFT=shift is not None, num_warps=4
        )
        x = row
        norm = gain = shift = None

    # Rows of the matrix per program, columns per step and warps, as measured.
    if norm is not None:
        rows, lanes, warps = (4, whole, 2)
    elif N > 16384:
        rows, lanes, warps = (4, min(whole, 512), 1)
    else:
        rows, lanes, warps = (2, min(whole, 1024), 4 if N < 5000 else 1)

    output = x.new_empty(*x.shape[:-1], N)
    multiply_row[(triton.cdiv(N, rows),)](
        x, gain, shift, weight, bias, residual, output, N, E, weight.stride(0), epsilon,
        ROWS=rows, LANES=lanes, NORM=norm is not None, SHIFT=shift is not None,
        ACTIVATION=activation, BIAS=bias is not None, RESIDUAL=residual is not None,
        num_warps=warps,
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def normalised(  # type: ignore[no-untyped-def]
        x, gain, shift, e, E, epsilon, SHIFT: tl.constexpr, dtype: tl.constexpr
    ):
        """LayerNorm, or RMSNorm without a shift, of a row in one program's registers."""
        row = tl.load(x + e, mask=e < E, other=0.0).to(tl.float32)
        square = tl.sum(row * row, 0) / E
        if SHIFT:
            mean = tl.sum(row, 0) / E
            square -= mean * mean
            row -= mean

        weight = tl.load(gain + e, mask=e < E, other=0.0).to(tl.float32)
        row = row * tl.rsqrt(square + epsilon) * weight
        if SHIFT:
            row += tl.load(shift + e, mask=e < E, other=0.0).to(tl.float32)

        return row.to(dtype).to(tl.float32)  # rounded wherever eager code rounds

    @triton.jit
    def norm_row(  # type: ignore[no-untyped-def]
        x, gain, shift, output, E, epsilon, LANES: tl.constexpr, SHIFT: tl.constexpr
    ):
        dtype: tl.constexpr = output.dtype.element_ty
        e = tl.arange(0, LANES)
        row = normalised(x, gain, shift, e, E, epsilon, SHIFT, dtype)
        tl.store(output + e, row.to(dtype), mask=e < E)

    @triton.jit
    def activated(y, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
        """The activations without a gate; 0 and swiglu leave y."""
        if ACTIVATION == 1:
            y = tl.maximum(y, 0.0)

        if ACTIVATION == 2:
            y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))

        if ACTIVATION == 3:
            inner = 0.7978845608028654 * (y + 0.044715 * y * y * y)
            y = y * tl.sigmoid(2.0 * inner)

        if ACTIVATION == 4:
            y = y * tl.sigmoid(y)

        if ACTIVATION == 6:
            y = tl.maximum(y, 0.0)
            y = y * y

        return y

    @triton.jit
    def multiply_row(  # type: ignore[no-untyped-def]
        x, gain, shift, weight, bias, residual, output, N, E, stride, epsilon,
        ROWS: tl.constexpr, LANES: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
        ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    ):  # fmt: skip
        """Each program reads ROWS rows of the matrix once; with a norm, all columns at once."""
        dtype: tl.constexpr = output.dtype.element_ty
        GATED: tl.constexpr = ACTIVATION == 5  # swiglu: row n is the gate of row n + N
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        rows = weight + n[:, None].to(tl.int64) * stride
        total = tl.zeros((ROWS, LANES), tl.float32)
        gated = tl.zeros((ROWS, LANES), tl.float32)

        for first in range(0, E, LANES):
            e = first + tl.arange(0, LANES)
            inside = (n[:, None] < N) & (e[None, :] < E)
            w = tl.load(rows + e[None, :], mask=inside, other=0.0)
            if NORM:
                row = normalised(x, gain, shift, e, E, epsilon, SHIFT, dtype)
            else:
                row = tl.load(x + e, mask=e < E, other=0.0).to(tl.float32)

            total += w.to(tl.float32) * row[None, :]
            if GATED:
                w = tl.load(rows + N.to(tl.int64) * stride + e[None, :], mask=inside, other=0.0)
                gated += w.to(tl.float32) * row[None, :]

        y = tl.sum(total, 1)
        if BIAS:
            y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)

        y = activated(y.to(dtype).to(tl.float32), ACTIVATION)
        if GATED:
            up = tl.sum(gated, 1)
            if BIAS:
                up += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)

            gate = (y * tl.sigmoid(y)).to(dtype).to(tl.float32)
            y = gate * up.to(dtype).to(tl.float32)

        if RESIDUAL:
            y = y.to(dtype).to(tl.float32)
            y += tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)

        tl.store(output + n, y.to(dtype), mask=n < N)
