"""The forward pass of a sparse pattern on a GPU (Triton): flash attention over its tiles."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.kernels.sparse_pattern.tile_pairs import row_strides, tile_of

try:
    import triton
    import triton.language as tl

    from qkv.nn.attention.kernels.sparse_pattern.tile_pairs import (
        BLOCK,
        COLUMN,
        SIZES,
        SUMMARIES,
        WINDOW,
        key_bounds,
        key_position,
        load_rows,
        query_position,
        sequence_length,
        store_rows,
        this_program,
    )
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

TILE: dict[str, int | None] = {"QUERIES": 64, "KEYS": 32, "num_warps": 4, "num_stages": 3}


def power_of_two(D: int) -> int:
    """The width of heads that the kernels take: padded with zeros, which change nothing."""
    width: int = triton.next_power_of_2(D)
    return max(width, 16)


def with_contiguous_heads(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one layout, whose last dimension is contiguous."""
    first = tensors[0]
    if first.stride(-1) == 1 and all(x.stride() == first.stride() for x in tensors):
        return tensors

    return tuple(x.contiguous() for x in tensors)


def forward(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B T K D"],
    value: Float[Tensor, "B T K D"],
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H T"]]:
    """The output, and the base-2 logarithms of the sums of exponentials."""
    (query,) = with_contiguous_heads(query)
    key, value = with_contiguous_heads(key, value)
    B, T, H, D = query.shape
    output = query.new_empty(B, T, H, D)
    sums = query.new_empty(B, H, T, dtype=torch.float32)

    def launch(part: int, sequences: int, length: int) -> None:
        tile = tile_of(TILE, D)
        attend_tile[(triton.cdiv(length, tile["QUERIES"]) * sequences * H, B)](
            query, key, value, output, sums, T, H, stride, summary,
            scale * math.log2(math.e), *row_strides(query), *row_strides(key),
            GROUP=H // key.shape[2], D=D, PART=part, **tile,
        )  # fmt: skip

    if summary:
        launch(BLOCK.value, 1, T)
    else:
        launch(WINDOW.value, 1, T)
        launch(COLUMN.value, stride, triton.cdiv(T, stride))

    return output, sums


if triton is not None:

    @triton.jit(do_not_specialize=SIZES)
    def attend_tile(  # type: ignore[no-untyped-def]
        query, key, value, output, sums, T, heads, stride, summary, scale,
        query_row, query_head, query_step, key_row, key_head, key_step,
        GROUP: tl.constexpr, D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr,
        KEYS: tl.constexpr,
    ):  # fmt: skip
        """One tile of queries; a column continues from the output and the sum of the window."""
        b, head, column, tile = this_program(heads, stride, PART)
        t = tile * QUERIES + tl.arange(0, QUERIES)
        position = query_position(t, column, stride, PART)
        inside = position < T
        q = load_rows(query + b * query_row + head * query_head, position, query_step, T, D)
        key += b * key_row + head // GROUP * key_head
        value += b * key_row + head // GROUP * key_head
        output += (b * T * heads + head) * D
        sums += (b * heads + head) * T + position

        if PART == COLUMN:
            top = tl.load(sums, mask=inside, other=0.0)
            total = tl.full((QUERIES,), 1.0, tl.float32)
            weighted = load_rows(output, position, heads * D, T, D).to(tl.float32)
        else:
            top = tl.full((QUERIES,), -float("inf"), tl.float32)
            total = tl.zeros((QUERIES,), tl.float32)
            weighted = tl.zeros((QUERIES, D), tl.float32)

        top, total, weighted = attend_keys(
            q, top, total, weighted, key, value, tile * QUERIES, column, T, key_step, scale,
            stride, summary, D, PART, QUERIES, KEYS,
        )  # fmt: skip
        if PART == BLOCK:
            top, total, weighted = attend_keys(
                q, top, total, weighted, key, value, tile * QUERIES, column, T, key_step, scale,
                stride, summary, D, SUMMARIES, QUERIES, KEYS,
            )  # fmt: skip

        total = tl.where(inside, total, 1.0)
        store_rows(output, weighted / total[:, None], position, heads * D, T, D)
        tl.store(sums, top + tl.log2(total), mask=inside)

    @triton.jit
    def attend_keys(  # type: ignore[no-untyped-def]
        q, top, total, weighted, key, value, first, column, T, key_step, scale,
        stride, summary,
        D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Online softmax over the keys of a part, rescaled as larger scores appear."""
        low, high = key_bounds(first + tl.arange(0, QUERIES), stride, summary, PART)
        begin, _ = key_bounds(first, stride, summary, PART)
        _, end = key_bounds(first + QUERIES - 1, stride, summary, PART)
        begin = tl.maximum(begin, 0)
        end = tl.minimum(end, sequence_length(T, stride, PART))
        for start in range(begin, end, KEYS):
            s = start + tl.arange(0, KEYS)
            position = key_position(s, column, stride, summary, PART)
            k = load_rows(key, position, key_step, T, D)
            v = load_rows(value, position, key_step, T, D)
            score = tl.dot(q, tl.trans(k)) * scale
            allowed = (s[None, :] >= low[:, None]) & (s[None, :] < high[:, None])
            score = tl.where(allowed, score, -float("inf"))

            new_top = tl.maximum(top, tl.max(score, 1))
            finite = tl.where(new_top == -float("inf"), 0.0, new_top)
            weight = tl.exp2(score - finite[:, None])
            rescale = tl.exp2(top - finite)
            total = total * rescale + tl.sum(weight, 1)
            weighted = tl.dot(weight.to(v.dtype), v, weighted * rescale[:, None])
            top = new_top

        return top, total, weighted
