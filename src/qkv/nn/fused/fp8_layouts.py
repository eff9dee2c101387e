"""A matrix in FP8 by rows and by columns, written by one kernel in one pass over its numbers.

Tensor cores multiply FP8 numbers that lie next to each other along the summed dimension. A matrix
of a layer is summed along its columns in one product, and along its rows in the gradient of a
weight, so that it is needed in both layouts. The kernel computes a tile: the numbers themselves,
their GELU, or a gradient times the derivative of GELU. It rounds the tile and stores it and its
transpose, in which two rows are one 16-bit number, so that the tile is transposed by the hardware's
instruction. By columns, zeros follow the last row up to a multiple of 16; they change no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.nn.fused.fp8 import E4M3, Fp8Tensor, rounded_up

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch brings it along only where there is a GPU to use it
    triton = None

TILE = {"ROWS": 64, "COLUMNS": 128, "num_warps": 4}
APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}
"""The activations that the kernel computes, and what PyTorch's GELU calls them."""
COPY = 0
ACTIVATION = 1
DERIVATIVE = 2


class BothLayouts(NamedTuple):
    """A matrix (M, P) in FP8; by columns, M is rounded up to a multiple of 16."""

    rows: Tensor
    columns: Tensor
    scale: Float[Tensor, ""]

    def by_rows(self) -> Fp8Tensor:
        return Fp8Tensor(self.rows, self.scale)

    def by_columns(self) -> Fp8Tensor:
        return Fp8Tensor(self.columns, self.scale)


def both_layouts(
    x: Float[Tensor, "M P"], scale: Float[Tensor, ""], dtype: torch.dtype = E4M3
) -> BothLayouts:
    """x in FP8."""
    return tiles(COPY, x, x, scale, dtype)[0]


def activated(
    hidden: Float[Tensor, "M F"], scale: Float[Tensor, ""], activation: str
) -> BothLayouts:
    """The activation of a hidden layer in FP8."""
    return tiles(ACTIVATION, hidden, hidden, scale, E4M3, activation)[0]


def through_activation(
    gradient: Float[Tensor, "M F"],
    hidden: Float[Tensor, "M F"],
    scale: Float[Tensor, ""],
    dtype: torch.dtype,
    activation: str,
    *,
    with_sums: bool,
) -> tuple[BothLayouts, Float[Tensor, "F"] | None]:
    """The gradient times the activation's derivative in FP8, and its sums over all rows."""
    return tiles(DERIVATIVE, hidden, gradient, scale, dtype, activation, with_sums)


def tiles(
    kind: int,
    x: Tensor,
    gradient: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    activation: str = "gelu_tanh",
    with_sums: bool = False,
    tile: dict[str, int] = TILE,
) -> tuple[BothLayouts, Tensor | None]:
    """The kernel on a GPU, PyTorch's operations elsewhere."""
    if not x.is_cuda:
        return computed_eagerly(kind, x, gradient, scale, dtype, activation, with_sums)

    M, P = x.shape
    stride = rounded_up(M)
    rows = torch.empty(M, P, dtype=dtype, device=x.device)
    columns = torch.empty(P, stride, dtype=dtype, device=x.device)
    grid = (triton.cdiv(stride, tile["ROWS"]), triton.cdiv(P, tile["COLUMNS"]))
    sums = torch.empty(grid[0] if with_sums else 0, P, device=x.device)
    quantise_tile[grid](
        x, gradient, scale, rows.view(torch.uint8), columns.view(torch.int16), sums, M, P, stride,
        E4M3=dtype == E4M3, KIND=kind, TANH=activation == "gelu_tanh", SUMS=with_sums, **tile,
    )  # fmt: skip

    return BothLayouts(rows, columns, scale), sums.sum(0) if with_sums else None


def computed_eagerly(
    kind: int,
    x: Tensor,
    gradient: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    activation: str,
    with_sums: bool,
) -> tuple[BothLayouts, Tensor | None]:
    """What the kernel computes, with PyTorch's operations."""
    values = x.float()
    approximate = APPROXIMATIONS[activation]
    if kind == ACTIVATION:
        values = F.gelu(values, approximate=approximate)
    elif kind == DERIVATIVE:
        values = torch.ops.aten.gelu_backward(gradient.float(), values, approximate=approximate)

    M, P = x.shape
    most = torch.finfo(dtype).max
    rows = (values * (1 / scale)).clamp(-most, most).to(dtype)
    columns = torch.zeros(P, rounded_up(M), dtype=dtype, device=x.device)
    columns[:, :M] = rows.T

    return BothLayouts(rows, columns, scale), values.sum(0) if with_sums else None


if triton is not None:
    LOG2_E = tl.constexpr(1.4426950408889634)
    LINEAR = tl.constexpr(1.5957691216057308)
    """2 sqrt(2 / pi): GELU by tanh is x sigmoid(LINEAR x + CUBIC x^3)."""
    CUBIC = tl.constexpr(1.5957691216057308 * 0.044715)
    DENSITY = tl.constexpr(0.3989422804014327)
    """Of the normal distribution at 0."""

    @triton.jit
    def quantise_tile(  # type: ignore[no-untyped-def]
        x, gradient, scale, by_rows, by_columns, sums, n, P, stride,
        E4M3: tl.constexpr, KIND: tl.constexpr, TANH: tl.constexpr, SUMS: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """A tile of (n, P) in both layouts; `stride` is n rounded up."""
        # 64-bit numbers only for where the tile begins
        first_row = tl.program_id(0) * ROWS
        first_column = tl.program_id(1) * COLUMNS
        pair = tl.arange(0, ROWS // 2)
        c = tl.arange(0, COLUMNS)
        is_column = first_column + c < P
        begin = first_row.to(tl.int64) * P + first_column
        factor = 1.0 / tl.load(scale)

        # Even rows and odd ones; zeros beyond the last row
        at = 2 * pair[:, None] * P + c[None, :]
        is_even = (first_row + 2 * pair < n)[:, None] & is_column[None, :]
        is_odd = (first_row + 2 * pair + 1 < n)[:, None] & is_column[None, :]
        even = tile_values(x + begin + at, gradient + begin + at, is_even, KIND, TANH)
        odd = tile_values(x + begin + at + P, gradient + begin + at + P, is_odd, KIND, TANH)

        # The 8 bits of an even row, then those of the odd one
        pairs = rounded_pair(even * factor, odd * factor, E4M3)
        tl.store(by_rows + begin + at, pairs.to(tl.uint8), mask=is_even)
        tl.store(by_rows + begin + at + P, (pairs >> 8).to(tl.uint8), mask=is_odd)

        half = stride // 2
        begin = first_column.to(tl.int64) * half + first_row // 2
        at = c[:, None] * half + pair[None, :]
        filled = is_column[:, None] & (first_row // 2 + pair < half)[None, :]
        tl.store(
            by_columns + begin + at,
            tl.trans(pairs.to(tl.uint16)).to(tl.int16, bitcast=True),
            mask=filled,
        )
        if SUMS:
            begin = tl.program_id(0).to(tl.int64) * P + first_column
            tl.store(sums + begin + c, tl.sum(even + odd, axis=0), mask=is_column)

    @triton.jit
    def tile_values(  # type: ignore[no-untyped-def]
        x, gradient, inside, KIND: tl.constexpr, TANH: tl.constexpr
    ):
        """The numbers at x, their GELU, or the gradient times the derivative of GELU."""
        values = tl.load(x, mask=inside, other=0.0).to(tl.float32)
        if KIND == 1:
            values *= gelu_share(values, TANH)
        if KIND == 2:
            upstream = tl.load(gradient, mask=inside, other=0.0).to(tl.float32)
            values = upstream * gelu_derivative(values, TANH)

        return values

    @triton.jit
    def rounded_pair(low, high, E4M3: tl.constexpr):  # type: ignore[no-untyped-def]
        """Two numbers in FP8 as the low 16 of 32 bits, neither beyond the limit of the format.

        Not by Triton's conversion, whose 16 bits NVIDIA's assembler (12.8) joined with those of an
        undefined register: half of the numbers of a row were garbage.
        """
        if E4M3:
            bits = tl.inline_asm_elementwise(
                """{ .reg .b16 pair;
                cvt.rn.satfinite.e4m3x2.f32 pair, $2, $1;
                cvt.u32.u16 $0, pair; }""",
                "=r,f,f", [low, high], tl.uint32, True, 1,
            )  # fmt: skip
        else:
            bits = tl.inline_asm_elementwise(
                """{ .reg .b16 pair;
                cvt.rn.satfinite.e5m2x2.f32 pair, $2, $1;
                cvt.u32.u16 $0, pair; }""",
                "=r,f,f", [low, high], tl.uint32, True, 1,
            )  # fmt: skip

        return bits

    @triton.jit
    def gelu_share(x, TANH: tl.constexpr):  # type: ignore[no-untyped-def]
        """GELU(x) / x, which is between 0 and 1."""
        share = normal_probability(x)
        if TANH:
            share = reciprocal(1.0 + power_of_2(-LOG2_E * x * (LINEAR + CUBIC * (x * x))))

        return share

    @triton.jit
    def gelu_derivative(x, TANH: tl.constexpr):  # type: ignore[no-untyped-def]
        share = gelu_share(x, TANH)
        change = DENSITY * power_of_2(-0.5 * LOG2_E * (x * x))
        if TANH:
            change = share * (1.0 - share) * (LINEAR + 3 * CUBIC * (x * x))

        return share + x * change

    @triton.jit
    def normal_probability(x):  # type: ignore[no-untyped-def]
        """That a normal number is below x, to 1e-7: formula 7.1.26 of Abramowitz and Stegun.

        The library's erf branches at every number: NVIDIA's assembler fails on that many branches.
        """
        t = reciprocal(1.0 + 0.231641888 * tl.abs(x))
        series = -0.7265760135 + t * 0.5307027145
        series = 0.1274147960 + t * (-0.1422483680 + t * (0.7107068705 + t * series))
        tail = t * series * power_of_2(-0.5 * LOG2_E * (x * x))
        return tl.where(x < 0.0, tail, 1.0 - tail)

    # One instruction each, where Triton's own operations take several to cover tiny numbers.

    @triton.jit
    def power_of_2(x):  # type: ignore[no-untyped-def]
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )

    @triton.jit
    def reciprocal(x):  # type: ignore[no-untyped-def]
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
