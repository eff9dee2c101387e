"""Decode attention on a GPU (Triton): one query per row against its KV cache, plain or paged."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Causal, Mask, Padding

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

PART = 1024  # keys per program: a longer sequence is split, and the parts' outputs are combined
HEAD_WIDTHS = (16, 32, 64, 128, 256)


def supports(call: AttentionCall) -> bool:
    """True on a GPU for T = 1, where a causal mask hides nothing, and without autograd."""
    query, key, value, mask, bias, _, dropout = call
    if triton is None or not query.is_cuda or query.shape[2] != 1:
        return False
    if bias is not None or dropout > 0:
        return False
    if query.dtype is torch.float64 or query.shape[3] not in HEAD_WIDTHS:
        return False
    if value.shape[3] != query.shape[3]:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return False

    return mask is None or is_causal_or_padding(mask)


def is_causal_or_padding(mask: Mask) -> bool:
    """True for causal masks and at most one padding mask."""
    paddings = 0
    for part in mask.members:
        if isinstance(part, Padding):
            paddings += 1
        elif not isinstance(part, Causal):
            return False

    return paddings < 2


def run(call: AttentionCall) -> Float[Tensor, "B H 1 D"]:
    if not supports(call):
        raise ValueError(
            "kernel decode: expected one query per row on a GPU, causal and padding masks, "
            "and no gradient"
        )

    query, key, value, mask, _, scale, _ = call
    padding_mask = None
    if mask is not None:
        for part in mask.members:
            if isinstance(part, Padding):
                padding_mask = part.padding_mask

    return decode_attention(query, key, value, padding_mask, scale)


register_kernel("decode", supports, run, rank=10)

SCHEMA = "(Tensor query, Tensor key, Tensor value, Tensor? padding_mask, float scale) -> Tensor"


# A custom operator, so that torch.compile does not trace into it.
@torch.library.custom_op("qkv::decode_attention", mutates_args=(), schema=SCHEMA)
def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, scale: float
) -> Tensor:
    if value.stride() != key.stride() or key.stride(3) != 1:
        key = key.contiguous()
        value = value.contiguous()

    return launch(contiguous_heads(query), key, value, padding_mask, scale)


@decode_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, scale: float
) -> Tensor:
    return query.new_empty(query.shape)


def contiguous_heads(query: Tensor) -> Tensor:
    return query if query.stride(3) == 1 else query.contiguous()


# Paged attention


class Pages(NamedTuple):
    """Where the keys of each row are in a paged cache."""

    block_table: Int[Tensor, "N longest"]
    table_rows: Int[Tensor, "R"]
    lengths: Int[Tensor, "R"]
    longest: int


def supports_pages(query: Tensor) -> bool:
    """The same conditions for keys in a paged cache (nn/cache/paged.py)."""
    if triton is None or not query.is_cuda or query.shape[2] != 1 or torch.is_grad_enabled():
        return False

    return query.dtype is not torch.float64 and query.shape[3] in HEAD_WIDTHS


def attend_paged(
    query: Float[Tensor, "R H 1 D"],
    keys: Float[Tensor, "P K D"],
    values: Float[Tensor, "P K D"],
    block_table: Int[Tensor, "N longest"],
    table_rows: Int[Tensor, "R"],
    lengths: Int[Tensor, "R"],
    longest: int,
) -> Float[Tensor, "R H 1 D"]:
    """Paged attention: one query of each sequence against all of its keys.

    Row r is a sequence whose slots are in row `table_rows[r]` of `block_table`.
    """
    pages = Pages(block_table, table_rows, lengths, longest)
    scale = 1 / math.sqrt(query.shape[3])
    return launch(contiguous_heads(query), keys, values, None, scale, pages)


def launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding_mask: Tensor | None,
    scale: float,
    pages: Pages | None = None,
) -> Tensor:
    """Run the kernel for every row, head and part of the keys, and combine the parts."""
    B, H, _, D = query.shape
    K = key.shape[1]

    # Strides of the keys: from row to row, from head to head, from slot to slot.
    if pages is None:
        pages = Pages(None, None, None, key.shape[2])  # type: ignore[arg-type]
        row, head, slot = key.stride()[:3]
    else:
        row = 0
        slot, head = key.stride()[:2]

    # Few programs must be quick; many must not use up the registers.
    tile = 8192 // D
    warps = 2
    if B * H < 128:
        tile = min(32768 // D, PART)
        warps = 8

    parts = triton.cdiv(pages.longest, PART)
    output_dtype = query.dtype if parts == 1 else torch.float32
    output = query.new_empty(B, H, parts, D, dtype=output_dtype)
    # Of each part, the largest score and the sum of the exponentials.
    sums = query.new_empty(2, B, H, parts, dtype=torch.float32)
    attend_part[(B, H, parts)](
        query, key, value, padding_mask, pages.block_table, pages.table_rows, pages.lengths,
        output, sums, pages.longest, scale * math.log2(math.e),
        query.stride(0), query.stride(1), row, head, slot,
        row_stride(padding_mask), row_stride(pages.block_table), sums.stride(0),
        GROUP=H // K, PARTS=parts, D=D, TILE=tile, PART=PART,
        PADDING_MASK=padding_mask is not None, PAGES=pages.block_table is not None,
        num_warps=warps,
    )  # fmt: skip

    if parts == 1:
        return output

    return combine_parts(output, sums).to(query.dtype)


def row_stride(matrix: Tensor | None) -> int:
    return 0 if matrix is None else matrix.stride(0)


def combine_parts(
    output: Float[Tensor, "B H P D"], sums: Float[Tensor, "2 B H P"]
) -> Float[Tensor, "B H 1 D"]:
    """The parts' outputs, weighted by their shares of all exponentials."""
    top, total = sums  # (B, H, parts)
    weight = torch.exp2(top - top.amax(-1, keepdim=True)) * total
    weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)

    return torch.einsum("bhp,bhpd->bhd", weight, output).unsqueeze(2)


def store_key_value(
    keys: Float[Tensor, "B K S D"],
    values: Float[Tensor, "B K S D"],
    slot: Int[Tensor, "1"],
    key: Float[Tensor, "B K 1 D"],
    value: Float[Tensor, "B K 1 D"],
) -> bool:
    """Write one key and value per row to a slot of the cache in one kernel; False if it cannot."""
    if triton is None or not key.is_cuda or torch.compiler.is_compiling():
        return False

    D = key.shape[3]
    same_layout = key.stride() == value.stride() and keys.stride() == values.stride()
    if not same_layout or key.stride(3) != 1 or value.shape[3] != D:
        return False

    store_row[(key.shape[0], key.shape[1])](
        keys, values, slot, key, value,
        keys.stride(0), keys.stride(1), keys.stride(2), key.stride(0), key.stride(1),
        D, LANES=triton.next_power_of_2(D), num_warps=1,
    )  # fmt: skip

    return True


if triton is not None:

    @triton.jit
    def store_row(  # type: ignore[no-untyped-def]
        keys, values, slot, key, value,
        row_stride, head_stride, slot_stride, new_row_stride, new_head_stride,
        D, LANES: tl.constexpr,
    ):  # fmt: skip
        """One head of one row."""
        b = tl.program_id(0).to(tl.int64)
        h = tl.program_id(1)
        d = tl.arange(0, LANES)
        target = b * row_stride + h * head_stride + tl.load(slot) * slot_stride + d
        new = b * new_row_stride + h * new_head_stride + d
        tl.store(keys + target, tl.load(key + new, mask=d < D), mask=d < D)
        tl.store(values + target, tl.load(value + new, mask=d < D), mask=d < D)

    @triton.jit
    def attend_part(  # type: ignore[no-untyped-def]
        query, key, value, padding_mask, block_table, table_rows, lengths, output, sums, S, scale,
        query_row, query_head, key_row, key_head, key_slot, padding_row, table_row, next_sum,
        GROUP: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
        PART: tl.constexpr, PADDING_MASK: tl.constexpr, PAGES: tl.constexpr,
    ):  # fmt: skip
        """Online softmax of one head of one row: tile by tile, rescaled as larger scores appear."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        part = tl.program_id(2)
        d = tl.arange(0, D)
        q = tl.load(query + row * query_row + head * query_head + d).to(tl.float32) * scale
        shift = row * key_row + (head // GROUP) * key_head
        key += shift
        value += shift
        if PAGES:
            S = tl.load(lengths + row).to(tl.int32)
            block_table += tl.load(table_rows + row).to(tl.int64) * table_row

        top = -1e30
        total = 0.0
        weighted = tl.zeros((D,), tl.float32)

        for first in range(part * PART, tl.minimum(part * PART + PART, S), TILE):
            s = first + tl.arange(0, TILE)
            visible = s < S
            if PADDING_MASK:
                padding = tl.load(padding_mask + row * padding_row + s, mask=visible, other=0)
                visible = visible & (padding != 0)

            slot = s
            if PAGES:
                slot = tl.load(block_table + s, mask=visible, other=0)

            offset = slot[:, None].to(tl.int64) * key_slot + d[None, :]
            k = tl.load(key + offset, mask=visible[:, None], other=0.0).to(tl.float32)
            v = tl.load(value + offset, mask=visible[:, None], other=0.0).to(tl.float32)
            score = tl.where(visible, tl.sum(k * q[None, :], 1), -1e30)

            new_top = tl.maximum(top, tl.max(score, 0))
            weight = tl.where(visible, tl.exp2(score - new_top), 0.0)
            rescale = tl.exp2(top - new_top)
            weighted = weighted * rescale + tl.sum(v * weight[:, None], 0)
            total = total * rescale + tl.sum(weight, 0)
            top = new_top

        target = (row * tl.num_programs(1) + head) * PARTS + part
        weighted = weighted / tl.where(total > 0, total, 1.0)  # zeros for a query without keys
        tl.store(output + target * D + d, weighted.to(output.dtype.element_ty))
        if PARTS > 1:
            tl.store(sums + target, top)
            tl.store(sums + next_sum + target, total)
