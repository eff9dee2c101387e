"""A few rows times a matrix on a GPU in Triton, with bias, activation and residual.

For up to 64 rows the time is that of reading the matrix; the tensor cores multiply meanwhile. A
general matrix product would be a kernel of its own that cannot start early (dependent_launch).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.decode.dependent_launch import in_chain, launch_options, tickets_for
from qkv.nn.linear.gemv import ACTIVATIONS, half_precision

try:
    import triton
    import triton.language as tl

    from qkv.nn.decode.dependent_launch import prefetch, start_next, wait
    from qkv.nn.linear.epilogue import finished
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

MOST_ROWS = 64
LINE = 64  # numbers of half precision in a cache line


def supports(x: Tensor, *weights: Tensor | object) -> bool:
    """True for 2 to 64 rows of half precision in a chain of kernels that start early."""
    if not in_chain():
        return False

    rows = x.numel() // x.shape[-1]
    return 1 < rows <= MOST_ROWS and x.is_contiguous() and half_precision(x, *weights)


class GemmTile(NamedTuple):
    """What one program computes."""

    columns: int
    """Rows of the matrix, which are columns of the output."""
    lanes: int
    """Numbers of each row that it reads at a time."""
    warps: int
    stages: int
    parts: int = 1
    """Programs among which the numbers of a row are divided; the last one adds their sums."""


def tile_for(N: int, E: int) -> GemmTile:
    """The tile for a matrix of N rows and E columns, as measured on an H200."""
    if N > 16384:
        return GemmTile(64, 128, 4, 4)
    if N > 2048:
        return GemmTile(32, 128, 4, 4)
    if E > 2048:
        return GemmTile(16, 256, 4, 3, parts=4)

    return GemmTile(16, 256, 4, 3)


def linear_rows(
    x: Float[Tensor, "*n E"],
    weight: Float[Tensor, "N E"],
    bias: Float[Tensor, "N"] | None = None,
    *,
    activation: int = 0,
    residual: Float[Tensor, "*n N"] | None = None,
) -> Float[Tensor, "*n R"]:
    """residual + activation(x W^T + bias) of up to 64 rows.

    Args:
        x: Contiguous rows.
        weight: With swiglu, the rows of the gate and then those of the gated layer.
        bias: Added to the product.
        activation: A value of `gemv.ACTIVATIONS`, or 0.
        residual: Added to the result.
    """
    N, E = weight.shape
    if activation == ACTIVATIONS["swiglu"]:
        N //= 2

    M = x.numel() // E
    tile = tile_for(N, E)
    programs = triton.cdiv(N, tile.columns)
    tickets = tickets_for(programs)
    parts = 1
    if tickets is not None and not activation:
        parts = tile.parts

    output = x.new_empty(*x.shape[:-1], N)
    sums = None
    if parts > 1:
        sums = x.new_empty(parts, M, N, dtype=torch.float32)

    multiply_rows[(programs, parts)](
        x, weight, bias, residual, output, sums, tickets, M, N, E, weight.stride(0),
        ROWS=max(16, triton.next_power_of_2(M)), COLUMNS=tile.columns, LANES=tile.lanes,
        LINES=triton.next_power_of_2(triton.cdiv(E, parts * LINE)), LINE=LINE, PARTS=parts,
        ACTIVATION=activation, BIAS=bias is not None, RESIDUAL=residual is not None,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def multiply_rows(  # type: ignore[no-untyped-def]
        x, weight, bias, residual, output, sums, tickets, M, N, E, stride,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
        LINES: tl.constexpr, LINE: tl.constexpr, PARTS: tl.constexpr,
        ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """All rows of x times COLUMNS rows of the matrix, or a part of their numbers."""
        dtype: tl.constexpr = output.dtype.element_ty
        GATED: tl.constexpr = ACTIVATION == 5  # swiglu: row n is the gate of row n + N
        m = tl.arange(0, ROWS)[:, None]
        n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        row = tl.minimum(n, N - 1)[:, None]
        w = weight + row.to(tl.int64) * stride
        u = weight + (row + N).to(tl.int64) * stride

        # The columns of this part.
        size = tl.cdiv(tl.cdiv(E, PARTS), LANES) * LANES
        begin = tl.program_id(1) * size
        end = tl.minimum(begin + size, E)
        line = tl.minimum(begin + tl.arange(0, LINES) * LINE, E - 1)[None, :]
        prefetch(w + line, PDL)
        if GATED:
            prefetch(u + line, PDL)

        start_next(PDL)
        wait(PDL)

        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        gated = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(begin, end, LANES):
            e = first + tl.arange(0, LANES)[None, :]
            part = tl.load(x + m * E + e, mask=(m < M) & (e < E), other=0.0)
            total = tl.dot(part, tl.load(w + e, mask=e < E, other=0.0).T, total)
            if GATED:
                gated = tl.dot(part, tl.load(u + e, mask=e < E, other=0.0).T, gated)

        column = n[None, :]
        target = m * N + column
        inside = (m < M) & (column < N)
        last = True
        if PARTS > 1:
            tl.store(sums + tl.program_id(1) * M * N + target, total, mask=inside)
            tl.debug_barrier()  # all threads of this program have stored their sums
            last = tl.atomic_add(tickets + tl.program_id(0), 1, sem="acq_rel") == PARTS - 1

        if last:
            if PARTS > 1:
                # In the order of the parts, whichever program comes last.
                total = tl.zeros((ROWS, COLUMNS), tl.float32)
                for other in range(PARTS):
                    source = sums + other * M * N + target
                    total += tl.load(source, mask=inside, other=0.0, cache_modifier=".cg")

                tl.store(tickets + tl.program_id(0), 0)

            y = finished(
                total, gated, bias, residual, column, target, inside, N, dtype,
                ACTIVATION, BIAS, RESIDUAL,
            )  # fmt: skip
            tl.store(output + target, y.to(dtype), mask=inside)
