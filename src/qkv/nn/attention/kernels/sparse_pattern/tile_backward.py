"""The backward pass of a sparse pattern on a GPU (Triton).

One kernel goes through tiles of queries and one through tiles of keys; both compute the weights
again from the sums. The gradient of a score is weight x (gradient of the weight - delta), where
delta is the sum over a row of output x gradient of the output.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.kernels.sparse_pattern.tile_forward import with_contiguous_heads
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
        query_bounds,
        query_position,
        sequence_length,
        store_rows,
        this_program,
    )
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

QUERY_TILE: dict[str, int | None] = {"QUERIES": 64, "KEYS": 32, "num_warps": 4, "num_stages": 3}
KEY_TILE: dict[str, int | None] = {
    "QUERIES": 32,
    "KEYS": 64,
    "num_warps": 4,
    "num_stages": 3,
    "maxnreg": 168,
}
PROGRAMS = 2048  # enough to fill a GPU: all queries see the few summaries, in splits of queries


def backward(
    gradient: Float[Tensor, "B T H D"],
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B T K D"],
    value: Float[Tensor, "B T K D"],
    output: Float[Tensor, "B T H D"],
    sums: Float[Tensor, "B H T"],
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B T K D"], Float[Tensor, "B T K D"]]:
    """The gradients of query, key and value, from the results of `forward`."""
    (query,) = with_contiguous_heads(query)
    (gradient,) = with_contiguous_heads(gradient)
    key, value = with_contiguous_heads(key, value)
    B, T, H, D = query.shape
    K = key.shape[2]
    dq = query.new_empty(B, T, H, D)
    dk = query.new_empty(B, T, K, D)
    dv = query.new_empty(B, T, K, D)
    deltas = torch.empty_like(sums)
    inputs = (gradient, query, key, value)
    strides = (*row_strides(gradient), *row_strides(query), *row_strides(key))
    sizes = (T, H, stride, summary, scale * math.log2(math.e), scale, *strides)
    constants = {"GROUP": H // K, "D": D}

    def launch(part: int, sequences: int, length: int) -> None:
        tile = tile_of(QUERY_TILE, D)
        grid = (triton.cdiv(length, tile["QUERIES"]) * sequences * H, B)
        backward_queries[grid](
            *inputs, output, sums, deltas, dq, *sizes, PART=part, **constants, **tile
        )
        tile = tile_of(KEY_TILE, D)
        grid = (triton.cdiv(length, tile["KEYS"]) * sequences * K, B)
        backward_keys[grid](*inputs, sums, deltas, dk, dv, *sizes, PART=part, **constants, **tile)

    if not summary:
        launch(WINDOW.value, 1, T)
        launch(COLUMN.value, stride, triton.cdiv(T, stride))
        return dq, dk, dv

    launch(BLOCK.value, 1, T)
    blocks = T // stride
    if blocks:
        # The queries fall into splits, each of which has its own sum for every summary position.
        tile = tile_of(KEY_TILE, D)
        tiles = triton.cdiv(blocks * summary, tile["KEYS"])
        splits = min(triton.cdiv(PROGRAMS, tiles * B * K), triton.cdiv(T, 256))
        splits = min(splits, triton.cdiv(stride, 4 * summary))  # half the memory of dk and dv
        partial = query.new_empty(2, splits, B, blocks * summary, K, D, dtype=torch.float32)
        backward_summaries[(tiles * K, B, splits)](
            *inputs, sums, deltas, *partial, *sizes, triton.cdiv(T, splits), **constants, **tile
        )
        add_summaries(dk, dv, partial.sum(1), stride, summary)

    return dq, dk, dv


def add_summaries(
    dk: Float[Tensor, "B T K D"],
    dv: Float[Tensor, "B T K D"],
    gradients: Float[Tensor, "2 B N K D"],
    stride: int,
    summary: int,
) -> None:
    """Add the gradients of the summary positions to those of all positions."""
    blocks = dk.shape[1] // stride
    for total, added in zip((dk, dv), gradients, strict=True):
        whole = total[:, : blocks * stride].unflatten(1, (blocks, stride))  # (B, n, l, K, D)
        whole[:, :, stride - summary :] += added.unflatten(1, (blocks, summary))


if triton is not None:

    @triton.jit(do_not_specialize=SIZES)
    def backward_queries(  # type: ignore[no-untyped-def]
        gradient, query, key, value, output, sums, deltas, query_gradient,
        T, heads, stride, summary, scale, factor,
        gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
        key_row, key_head, key_step,
        GROUP: tl.constexpr, D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr,
        KEYS: tl.constexpr,
    ):  # fmt: skip
        """One tile of queries; a column adds to the gradient of the window."""
        b, head, column, tile = this_program(heads, stride, PART)
        t = tile * QUERIES + tl.arange(0, QUERIES)
        position = query_position(t, column, stride, PART)
        inside = position < T
        q = load_rows(query + b * query_row + head * query_head, position, query_step, T, D)
        gradient += b * gradient_row + head * gradient_head
        g = load_rows(gradient, position, gradient_step, T, D)
        key += b * key_row + head // GROUP * key_head
        value += b * key_row + head // GROUP * key_head
        own = (b * T * heads + head) * D
        at = (b * heads + head) * T + position

        log_sum = tl.load(sums + at, mask=inside, other=float("inf"))
        dq = tl.zeros((QUERIES, D), tl.float32)
        if PART == COLUMN:
            delta = tl.load(deltas + at, mask=inside, other=0.0)
        else:
            o = load_rows(output + own, position, heads * D, T, D)
            delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
            tl.store(deltas + at, delta, mask=inside)

        dq = add_query_gradient(
            dq, q, g, log_sum, delta, key, value, tile * QUERIES, column, T, key_step, scale,
            stride, summary, D, PART, QUERIES, KEYS,
        )  # fmt: skip
        if PART == BLOCK:
            dq = add_query_gradient(
                dq, q, g, log_sum, delta, key, value, tile * QUERIES, column, T, key_step, scale,
                stride, summary, D, SUMMARIES, QUERIES, KEYS,
            )  # fmt: skip

        dq = dq * factor
        query_gradient += own
        if PART == COLUMN:
            dq += load_rows(query_gradient, position, heads * D, T, D).to(tl.float32)

        store_rows(query_gradient, dq, position, heads * D, T, D)

    @triton.jit
    def add_query_gradient(  # type: ignore[no-untyped-def]
        dq, q, g, log_sum, delta, key, value, first, column, T, key_step, scale,
        stride, summary,
        D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """From the keys of a part."""
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
            allowed = (s[None, :] >= low[:, None]) & (s[None, :] < high[:, None])
            score = tl.dot(q, tl.trans(k)) * scale - log_sum[:, None]
            weight = tl.exp2(tl.where(allowed, score, -float("inf")))
            ds = weight * (tl.dot(g, tl.trans(v)) - delta[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq)

        return dq

    @triton.jit(do_not_specialize=SIZES)
    def backward_keys(  # type: ignore[no-untyped-def]
        gradient, query, key, value, sums, deltas, key_gradient, value_gradient,
        T, heads, stride, summary, scale, factor,
        gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
        key_row, key_head, key_step,
        GROUP: tl.constexpr, D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr,
        KEYS: tl.constexpr,
    ):  # fmt: skip
        """One tile of keys; a column adds to the gradients of the window."""
        key_heads = heads // GROUP
        b, head, column, tile = this_program(key_heads, stride, PART)
        dk, dv, position = key_gradients(
            gradient, query, key, value, sums, deltas, T, heads, stride, summary, scale,
            gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
            key_row, key_head, key_step, b, head, column, tile * KEYS, 0, T,
            GROUP, D, PART, QUERIES, KEYS,
        )  # fmt: skip

        dk = dk * factor
        step = key_heads * D
        own = (b * T * key_heads + head) * D
        if PART == COLUMN:
            dk += load_rows(key_gradient + own, position, step, T, D).to(tl.float32)
            dv += load_rows(value_gradient + own, position, step, T, D).to(tl.float32)

        store_rows(key_gradient + own, dk, position, step, T, D)
        store_rows(value_gradient + own, dv, position, step, T, D)

    @triton.jit(do_not_specialize=[*SIZES, "split"])
    def backward_summaries(  # type: ignore[no-untyped-def]
        gradient, query, key, value, sums, deltas, key_gradient, value_gradient,
        T, heads, stride, summary, scale, factor,
        gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
        key_row, key_head, key_step, split,
        GROUP: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """One tile of summary positions and one split of the queries."""
        key_heads = heads // GROUP
        b, head, column, tile = this_program(key_heads, stride, SUMMARIES)
        begin = tl.program_id(2) * split
        dk, dv, _ = key_gradients(
            gradient, query, key, value, sums, deltas, T, heads, stride, summary, scale,
            gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
            key_row, key_head, key_step, b, head, column, tile * KEYS, begin, begin + split,
            GROUP, D, SUMMARIES, QUERIES, KEYS,
        )  # fmt: skip

        s = tile * KEYS + tl.arange(0, KEYS)
        count = T // stride * summary
        row = (tl.program_id(2) * tl.num_programs(1) + b) * count * key_heads + head
        store_rows(key_gradient + row * D, dk * factor, s, key_heads * D, count, D)
        store_rows(value_gradient + row * D, dv, s, key_heads * D, count, D)

    @triton.jit
    def key_gradients(  # type: ignore[no-untyped-def]
        gradient, query, key, value, sums, deltas, T, heads, stride, summary, scale,
        gradient_row, gradient_head, gradient_step, query_row, query_head, query_step,
        key_row, key_head, key_step, b, key_value_head, column, first, begin, end,
        GROUP: tl.constexpr, D: tl.constexpr, PART: tl.constexpr, QUERIES: tl.constexpr,
        KEYS: tl.constexpr,
    ):  # fmt: skip
        """The gradients of a tile of keys and values by queries begin to end; its positions."""
        s = first + tl.arange(0, KEYS)
        low, high = query_bounds(s, stride, summary, T, PART)
        first_query, _ = query_bounds(first, stride, summary, T, PART)
        _, last_query = query_bounds(first + KEYS - 1, stride, summary, T, PART)
        begin = tl.maximum(begin, first_query)
        end = tl.minimum(tl.minimum(end, last_query), sequence_length(T, stride, PART))
        position = key_position(s, column, stride, summary, PART)
        shift = b * key_row + key_value_head * key_head
        k = load_rows(key + shift, position, key_step, T, D)
        v = load_rows(value + shift, position, key_step, T, D)
        dk = tl.zeros((KEYS, D), tl.float32)
        dv = tl.zeros((KEYS, D), tl.float32)

        for head in range(key_value_head * GROUP, key_value_head * GROUP + GROUP):
            queries = query + b * query_row + head * query_head
            gradients = gradient + b * gradient_row + head * gradient_head
            row = (b * heads + head) * T
            for start in range(begin, end, QUERIES):
                t = start + tl.arange(0, QUERIES)
                at = query_position(t, column, stride, PART)
                inside = (t < end) & (at < T)
                q = load_rows(queries, at, query_step, T, D)
                g = load_rows(gradients, at, gradient_step, T, D)
                log_sum = tl.load(sums + row + at, mask=inside, other=float("inf"))
                delta = tl.load(deltas + row + at, mask=inside, other=0.0)

                allowed = (t[None, :] >= low[:, None]) & (t[None, :] < high[:, None])
                score = tl.dot(k, tl.trans(q)) * scale - log_sum[None, :]
                weight = tl.exp2(tl.where(allowed, score, -float("inf")))
                dv = tl.dot(weight.to(g.dtype), g, dv)
                ds = weight * (tl.dot(v, tl.trans(g)) - delta[None, :])
                dk = tl.dot(ds.to(q.dtype), q, dk)

        return dk, dv, position
