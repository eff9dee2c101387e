"""Attention of a decode step in a static cache (Triton), from the projections to the heads.

One kernel rotates queries and keys, writes the new key and value into the cache and attends.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.cache.static import StaticCache
from qkv.nn.decode.dependent_launch import launch_options

try:
    import triton
    import triton.language as tl

    from qkv.nn.decode.dependent_launch import start_next, wait
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

LONGEST = 4096  # positions of a cache: one program reads all of them
HEAD_WIDTHS = (16, 32, 64, 128, 256)
FEW = 128  # programs that cannot fill the GPU


def supports(attention: MultiHeadAttention, state: StaticCache) -> bool:
    """True for a short cache whose keys and values are laid out alike."""
    if triton is None or state.capacity > LONGEST or attention.head_width not in HEAD_WIDTHS:
        return False

    keys, values = state.buffers[attention.layer]
    return keys.stride() == values.stride()


def tile_for(S: int, D: int, programs: int) -> tuple[int, int]:
    """Slots that a program reads at a time, and its warps, as measured on an H200.

    Few programs must be quick; many must not use up the registers.
    """
    whole = triton.next_power_of_2(S)
    if programs >= FEW:
        return min(whole, 8192 // D), 4
    if whole * D <= 32768:
        return whole, 8

    return 32768 // D, 16


def attend_and_store(
    qkv: Float[Tensor, "B 1 R"],
    attention: MultiHeadAttention,
    rotary: Float[Tensor, "2 #B 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "B 1 N"]:
    """Write the new key and value into the cache, and let every head attend to all of it.

    Args:
        qkv: The queries, keys and values of one token per row.
        attention: The layer that projected them.
        rotary: Cosines and sines of rotary positions.
        state: The cache.
    """
    keys, values = state.buffers[attention.layer]  # (B, K, S, D)
    B, K, S, D = keys.shape
    heads = attention.heads
    output = qkv.new_empty(B, 1, heads * D)

    tile, warps = tile_for(S, D, B * heads)
    rotary_row = 0
    if rotary is not None and rotary.shape[1] > 1:
        rotary_row = rotary.stride(1)

    attend_head[(heads, B)](
        qkv, rotary, keys, values, state.slot, state.padding_mask, output, S,
        math.log2(math.e) / math.sqrt(D),
        keys.stride(0), keys.stride(1), keys.stride(2), state.padding_mask.stride(0),
        rotary_row, 0 if rotary is None else rotary.stride(0),
        HEADS=heads, KV_HEADS=K, D=D, TILE=tile, TILES=triton.cdiv(S, tile),
        ROTARY=rotary is not None, num_warps=warps, **launch_options(),
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def rotated(x, cosines, sines, d, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """Rotary positions of one head: dimensions d and d + D/2 are a pair."""
        dtype: tl.constexpr = x.dtype.element_ty
        cos = tl.load(cosines + d).to(dtype).to(tl.float32)
        sin = tl.load(sines + d).to(dtype).to(tl.float32)
        first = tl.load(x + d).to(tl.float32)
        second = tl.load(x + (d + D // 2) % D).to(tl.float32)

        return first * cos + tl.where(d < D // 2, -second, second) * sin

    @triton.jit
    def attend_head(  # type: ignore[no-untyped-def]
        qkv, rotary, keys, values, slot, padding_mask, output, S, scale,
        key_row, key_head, key_slot, padding_row, rotary_row, sines,
        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
        TILES: tl.constexpr, ROTARY: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: the new key and value from `qkv`, earlier ones from the cache."""
        dtype: tl.constexpr = output.dtype.element_ty
        head = tl.program_id(0)
        row = tl.program_id(1).to(tl.int64)
        group: tl.constexpr = HEADS // KV_HEADS
        kv_head = head // group
        d = tl.arange(0, D)
        keys += row * key_row + kv_head * key_head
        values += row * key_row + kv_head * key_head
        padding_mask += row * padding_row
        qkv += row * (HEADS + 2 * KV_HEADS) * D

        # The first tile of earlier steps, before the query is known.
        new_slot = tl.load(slot)
        s = tl.arange(0, TILE)
        visible = (s < S) & (s != new_slot)
        visible = visible & (tl.load(padding_mask + s, mask=visible, other=0) != 0)
        offset = s[:, None] * key_slot + d[None, :]
        old_keys = tl.load(keys + offset, mask=visible[:, None], other=0.0)
        old_values = tl.load(values + offset, mask=visible[:, None], other=0.0)
        start_next(PDL)
        wait(PDL)

        new_key = qkv + (HEADS + kv_head) * D
        v = tl.load(qkv + (HEADS + KV_HEADS + kv_head) * D + d)
        if ROTARY:
            cosines = rotary + row * rotary_row
            q = rotated(qkv + head * D, cosines, cosines + sines, d, D)
            k = rotated(new_key, cosines, cosines + sines, d, D).to(dtype)
            q = q.to(dtype).to(tl.float32) * scale
        else:
            q = tl.load(qkv + head * D + d).to(tl.float32) * scale
            k = tl.load(new_key + d)

        if head % group == 0:
            tl.store(keys + new_slot * key_slot + d, k)
            tl.store(values + new_slot * key_slot + d, v)

        # Online softmax, which begins with the new position.
        top = tl.sum(k.to(tl.float32) * q, 0)
        total = 1.0
        weighted = v.to(tl.float32)

        for first in range(0, TILES * TILE, TILE):
            score = tl.sum(old_keys.to(tl.float32) * q[None, :], 1)
            score = tl.where(visible, score, -1e30)
            new_top = tl.maximum(top, tl.max(score, 0))
            weight = tl.where(visible, tl.exp2(score - new_top), 0.0)
            rescale = tl.exp2(top - new_top)
            weighted = weighted * rescale + tl.sum(old_values.to(tl.float32) * weight[:, None], 0)
            total = total * rescale + tl.sum(weight, 0)
            top = new_top

            # The next tile.
            if TILES > 1:
                s = first + TILE + tl.arange(0, TILE)
                visible = (s < S) & (s != new_slot)
                visible = visible & (tl.load(padding_mask + s, mask=visible, other=0) != 0)
                offset = s[:, None] * key_slot + d[None, :]
                old_keys = tl.load(keys + offset, mask=visible[:, None], other=0.0)
                old_values = tl.load(values + offset, mask=visible[:, None], other=0.0)

        tl.store(output + (row * HEADS + head) * D + d, (weighted / total).to(dtype))
