"""Attention of prompts over a paged cache on a GPU: many sequences in one row.

Prompts without a past attend to themselves. In a CUDA graph (`PackedPrompts`) a Triton kernel reads
all keys from the pages, the new ones and those of a past, such as a cached prefix.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.mask import Mask
from qkv.nn.cache.packed_prompts import PackedPrompts
from qkv.nn.cache.paged import PackedBatch, by_sequence
from qkv.nn.position import rotate

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

WIDE = 256  # bytes of a head from which a tile is smaller, to fit into shared memory


def attend_prompts(
    qkv: Float[Tensor, "N R"],
    attention: Any,
    rotary: Float[Tensor, "2 1 1 N D"] | None,
    mask: Mask | None,
    state: PackedBatch | PackedPrompts,
) -> Float[Tensor, "N M"]:
    """Write the new keys and values, and let every token attend to its prompt up to itself."""
    K = attention.kv_heads
    query, key, value = attention.split(qkv.unsqueeze(0), attention.heads, K, K)  # (1, H, N, D)
    if rotary is not None:
        query = rotate(query, rotary)
        key = rotate(key, rotary)

    assert state.slots is not None
    state.pages.write(attention.layer, state.slots, key, value)
    if isinstance(state, PackedPrompts):
        return attend_tiles(query, attention.layer, state)
    if len(state.groups) > 1 and query.dtype in (torch.bfloat16, torch.float16):
        return attend_documents(query, key, value, state)

    outputs = []
    for group in state.groups:
        parts = [by_sequence(x, group) for x in (query, key, value)]  # (R, H, T, D) each
        heads, _ = attention.attend(*parts, mask, None)
        outputs.append(heads.transpose(1, 2).reshape(group.end - group.begin, -1))  # (R T, H D)

    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def attend_documents(
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
    state: PackedBatch,
) -> Float[Tensor, "N M"]:
    """Causal attention inside each sequence of a row, by one flash kernel for all lengths."""
    by_token = [x[0].transpose(0, 1) for x in (query, key, value)]  # (N, H, D) each
    longest = max(group.tokens for group in state.groups)
    bounds = state.bounds
    output, *_ = torch.ops.aten._flash_attention_forward(
        *by_token, bounds, bounds, longest, longest, 0.0, True, False
    )
    heads: Tensor = output.flatten(1)
    return heads


def tile_tokens(head_width: int, dtype: torch.dtype) -> int:
    """Tokens of a tile at most."""
    return 32 if head_width * dtype.itemsize > WIDE else 64


def attend_tiles(
    query: Float[Tensor, "1 H N D"], layer: int, state: PackedPrompts
) -> Float[Tensor, "N M"]:
    """Every tile attends to the pages of its sequence, whose new keys are written."""
    _, H, N, D = query.shape
    keys = state.pages.keys[layer]  # (P, K, D)
    values = state.pages.values[layer]
    tiles = state.tiles
    output = query.new_empty(N, H * D)
    # Wide heads leave shared memory for fewer keys at a time
    head_bytes = D * query.element_size()
    stages = max(1, min(3, 4 * WIDE // head_bytes))
    attend_tile[(tiles.shape[1], H)](
        query, keys, values, state.pages.block_table, state.table_rows, tiles, output,
        math.log2(math.e) / math.sqrt(D), query.stride(2), query.stride(1),
        keys.stride(0), keys.stride(1), state.pages.block_table.stride(0), tiles.stride(0),
        GROUP=H // keys.shape[1], D=D, TILE=tile_tokens(D, query.dtype),
        KEYS=64 if head_bytes < WIDE else 32,
        PRECISION="ieee" if query.dtype is torch.float32 else "tf32",
        num_warps=4, num_stages=stages,
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def attend_tile(  # type: ignore[no-untyped-def]
        query, keys, values, block_table, table_rows, tiles, output, scale,
        query_token, query_head, key_slot, key_head, table_row, next_tile,
        GROUP: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
        PRECISION: tl.constexpr,
    ):  # fmt: skip
        """One head of one tile: online softmax, KEYS keys at a time."""
        head = tl.program_id(1)
        tiles += tl.program_id(0)
        first = tl.load(tiles)
        count = tl.load(tiles + next_tile).to(tl.int32)
        S = tl.load(tiles + 2 * next_tile).to(tl.int32)
        if count == 0:
            return

        t = tl.arange(0, TILE)
        d = tl.arange(0, D)
        inside = (t < count)[:, None]
        last = S - count + t  # the last key of each token
        source = (first + t) * query_token
        q = tl.load(query + source[:, None] + head * query_head + d, mask=inside, other=0.0)
        keys += (head // GROUP) * key_head
        values += (head // GROUP) * key_head
        block_table += tl.load(table_rows + first) * table_row

        top = tl.full((TILE,), -1e30, tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        weighted = tl.zeros((TILE, D), tl.float32)
        for begin in range(0, S, KEYS):
            s = begin + tl.arange(0, KEYS)
            slot = tl.load(block_table + s, mask=s < S, other=0).to(tl.int64) * key_slot
            k = tl.load(keys + slot[None, :] + d[:, None], mask=(s < S)[None, :], other=0.0)
            score = tl.dot(q, k, input_precision=PRECISION) * scale
            score = tl.where(s[None, :] <= last[:, None], score, -1e30)
            new_top = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp2(score - new_top[:, None])
            rescale = tl.exp2(top - new_top)
            v = tl.load(values + slot[:, None] + d[None, :], mask=(s < S)[:, None], other=0.0)
            total = total * rescale + tl.sum(weight, 1)
            weighted = weighted * rescale[:, None]
            weighted = tl.dot(weight.to(v.dtype), v, weighted, input_precision=PRECISION)
            top = new_top

        weighted = weighted / tl.where(total > 0, total, 1.0)[:, None]  # 0 for padding
        target = (first + t) * tl.num_programs(1) * D + head * D
        dtype: tl.constexpr = output.dtype.element_ty
        tl.store(output + target[:, None] + d, weighted.to(dtype), mask=inside)
