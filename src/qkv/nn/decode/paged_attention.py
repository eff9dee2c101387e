"""Paged attention of a decode step on a GPU (Triton), from the projections of one new token each.

One kernel applies rotary positions, writes the new keys and values into the pages and attends.
"""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.kernels.decode import PART, attend_paged
from qkv.nn.cache.paged import PackedBatch

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

MANY = 512  # programs that occupy all multiprocessors


def attend_and_store(
    qkv: Float[Tensor, "R N"],
    attention: Any,
    rotary: Float[Tensor, "2 1 1 R D"] | None,
    state: PackedBatch,
) -> Float[Tensor, "R M"]:
    """Write the new keys and values into the pages, and let every head attend to its sequence."""
    group = state.groups[0]
    keys = state.pages.keys[attention.layer]  # (P, K, D)
    values = state.pages.values[attention.layer]
    H = attention.heads
    _, K, D = keys.shape
    R = len(qkv)
    output = qkv.new_empty(R, H * D)
    whole = group.longest <= PART
    # Keys per step and warps, as measured: few programs must be quick, many must be small.
    tile, warps = (32, 1) if R * K >= MANY else (128, 4)
    attend_pages[(R, K)](
        qkv, rotary, keys, values, state.block_table, group.table_rows, group.lengths,
        state.slots, output, math.log2(math.e) / math.sqrt(D),
        qkv.stride(0), keys.stride(0), keys.stride(1), state.block_table.stride(0), R * D,
        HEADS=H, KV_HEADS=K, D=D, TILE=tile, ROTARY=rotary is not None, ATTEND=whole,
        num_warps=warps,
    )  # fmt: skip
    if whole:
        return output

    # A long sequence is split into parts; the kernel above has stored the turned queries
    assert group.table_rows is not None
    assert group.lengths is not None
    query = output.unflatten(1, (H, 1, D))  # (R, H, 1, D)
    heads = attend_paged(
        query, keys, values, state.block_table, group.table_rows, group.lengths, group.longest
    )
    return heads.flatten(1)


if triton is not None:

    @triton.jit
    def rotated_head(  # type: ignore[no-untyped-def]
        x, rotary, next_sine, d, D: tl.constexpr, ROTARY: tl.constexpr
    ):
        """One head of a row, turned by rotary positions: dimensions d and d + D/2 are a pair."""
        dtype: tl.constexpr = x.dtype.element_ty
        first = tl.load(x + d)
        if ROTARY:
            cos = tl.load(rotary + d).to(dtype).to(tl.float32)
            sin = tl.load(rotary + next_sine + d).to(dtype).to(tl.float32)
            second = tl.load(x + (d + D // 2) % D).to(tl.float32)
            turned = tl.where(d < D // 2, -second, second) * sin
            first = (first.to(tl.float32) * cos + turned).to(dtype)

        return first

    @triton.jit
    def attend_pages(  # type: ignore[no-untyped-def]
        qkv, rotary, keys, values, block_table, table_rows, lengths, slots, output, scale,
        qkv_row, key_slot, key_head, table_row, next_sine,
        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
        ROTARY: tl.constexpr, ATTEND: tl.constexpr,
    ):  # fmt: skip
        """The query heads of one key head in one row; without ATTEND the queries are returned."""
        row = tl.program_id(0).to(tl.int64)
        kv_head = tl.program_id(1)
        group: tl.constexpr = HEADS // KV_HEADS
        d = tl.arange(0, D)
        qkv += row * qkv_row
        if ROTARY:
            rotary += row * D

        new_key = rotated_head(qkv + (HEADS + kv_head) * D, rotary, next_sine, d, D, ROTARY)
        new_value = tl.load(qkv + (HEADS + KV_HEADS + kv_head) * D + d)
        slot = tl.load(slots + row) * key_slot + kv_head * key_head
        tl.store(keys + slot + d, new_key)
        tl.store(values + slot + d, new_value)

        keys += kv_head * key_head
        values += kv_head * key_head
        block_table += tl.load(table_rows + row).to(tl.int64) * table_row
        S = tl.load(lengths + row).to(tl.int32) - 1  # without the new position
        for member in tl.static_range(group):
            head = kv_head * group + member
            q = rotated_head(qkv + head * D, rotary, next_sine, d, D, ROTARY)
            target = output + row * HEADS * D + head * D + d
            if ATTEND:
                q = q.to(tl.float32) * scale
                # Online softmax, which begins with the new position
                top = tl.sum(new_key.to(tl.float32) * q, 0)
                total = 1.0
                weighted = new_value.to(tl.float32)
                for first in range(0, S, TILE):
                    s = first + tl.arange(0, TILE)
                    visible = s < S
                    page = tl.load(block_table + s, mask=visible, other=0).to(tl.int64)
                    offset = page[:, None] * key_slot + d[None, :]
                    k = tl.load(keys + offset, mask=visible[:, None], other=0.0)
                    v = tl.load(values + offset, mask=visible[:, None], other=0.0)
                    score = tl.sum(k.to(tl.float32) * q[None, :], 1)
                    score = tl.where(visible, score, -1e30)
                    new_top = tl.maximum(top, tl.max(score, 0))
                    weight = tl.exp2(score - new_top)
                    rescale = tl.exp2(top - new_top)
                    weighted = weighted * rescale + tl.sum(v.to(tl.float32) * weight[:, None], 0)
                    total = total * rescale + tl.sum(weight, 0)
                    top = new_top

                tl.store(target, (weighted / total).to(output.dtype.element_ty))
            else:
                tl.store(target, q)
