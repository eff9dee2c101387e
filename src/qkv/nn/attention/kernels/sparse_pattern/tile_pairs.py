"""The pairs of a sparse pattern for tiles on a GPU (Triton): where they lie, and which are allowed.

A tile is some queries t and keys s of a sequence. A pattern has up to two parts:

    WINDOW      positions: the last `stride` of them                       strided
    COLUMN      an offset of the blocks of `stride`: the earlier blocks  strided
    BLOCK       positions: those of the own block up to the query        fixed
    SUMMARIES   queries are positions, keys the last `summary` of every  fixed
                block, numbered from 0: those of earlier blocks

Every pair is in one part only.
"""

from __future__ import annotations

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None


def row_strides(x: Tensor) -> tuple[int, int, int]:
    """Of (B, T, H, D): from row to row, from head to head, from position to position."""
    return x.stride(0), x.stride(2), x.stride(1)


def tile_of(tile: dict[str, int | None], D: int) -> dict[str, int | None]:
    """The tile for heads of a width: wide ones take more registers, and fewer loads in flight."""
    return tile if D <= 64 else dict(tile, num_stages=2, maxnreg=None)


if triton is not None:
    SIZES = ["T", "heads", "stride"]
    """Arguments for whose values Triton does not compile a kernel again."""

    WINDOW = tl.constexpr(0)
    COLUMN = tl.constexpr(1)
    BLOCK = tl.constexpr(2)
    SUMMARIES = tl.constexpr(3)

    @triton.jit
    def this_program(heads, stride, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        """Row, head, column and tile; neighbouring programs have neighbouring heads and columns."""
        b = tl.program_id(1).to(tl.int64)
        head = tl.program_id(0) % heads
        tile = tl.program_id(0) // heads
        column = 0
        if PART == COLUMN:
            column = tile % stride
            tile = tile // stride

        return b, head, column, tile

    @triton.jit
    def query_position(t, column, stride, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        position = t
        if PART == COLUMN:
            position = t * stride + column

        return position

    @triton.jit
    def key_position(s, column, stride, summary, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        position = s
        if PART == COLUMN:
            position = s * stride + column
        if PART == SUMMARIES:
            position = s // summary * stride + (stride - summary) + s % summary

        return position

    @triton.jit
    def key_bounds(t, stride, summary, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        """The keys [low, high) of query t."""
        low = t * 0
        high = t + 1
        if PART == WINDOW:
            low = t - stride + 1
        elif PART == COLUMN:
            high = t
        elif PART == BLOCK:
            low = t // stride * stride
        else:
            high = t // stride * summary

        return low, high

    @triton.jit
    def query_bounds(s, stride, summary, T, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        """The queries [low, high) of key s."""
        low = s
        high = s * 0 + T
        if PART == WINDOW:
            high = s + stride
        elif PART == COLUMN:
            low = s + 1
        elif PART == BLOCK:
            high = (s // stride + 1) * stride
        else:
            low = (s // summary + 1) * stride

        return low, high

    @triton.jit
    def sequence_length(T, stride, PART: tl.constexpr):  # type: ignore[no-untyped-def]
        """Positions, or positions with the same offset."""
        length = T
        if PART == COLUMN:
            length = tl.cdiv(T, stride)

        return length

    @triton.jit
    def load_rows(x, position, step, T, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """Rows by position, and zeros past the end."""
        d = tl.arange(0, D)
        inside = (position < T)[:, None]
        return tl.load(x + position[:, None] * step + d[None, :], mask=inside, other=0.0)

    @triton.jit
    def store_rows(x, rows, position, step, T, D: tl.constexpr):  # type: ignore[no-untyped-def]
        d = tl.arange(0, D)
        inside = (position < T)[:, None]
        target = x + position[:, None] * step + d[None, :]
        tl.store(target, rows.to(x.dtype.element_ty), mask=inside)
