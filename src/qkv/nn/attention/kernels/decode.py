"""A substitute for the eager equation on a GPU: one query a row against everything so far, as
decoding asks it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Mask, Padding

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with PyTorch where there is a GPU to use it
    triton = None

PART = (
    1024  # keys of one program: a longer memory is looked at by several, whose answers are joined
)


def supports(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None, dropout: float
) -> bool:
    """The last position alone, which a causal mask hides nothing from; and nobody asks for a
    gradient.
    """
    if (
        triton is None
        or not query.is_cuda
        or query.shape[2] != 1
        or bias is not None
        or dropout > 0
    ):
        return False
    if (
        query.dtype is torch.float64
        or query.shape[3] not in (16, 32, 64, 128, 256)
        or value.shape[3] != query.shape[3]
    ):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
        return False

    parts = () if mask is None else mask.members

    return (
        all(isinstance(part, Causal | Padding) for part in parts)
        and sum(isinstance(p, Padding) for p in parts) < 2
    )


def attend(
    query: Float[Tensor, "B H 1 D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S D"],
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H 1 D"]:
    if not supports(query, key, value, mask, bias, dropout):
        raise ValueError(
            "kernel single: expected one query a row on a GPU, causal and padding masks, and no gradient"
        )

    padding_mask = next(
        (
            part.padding_mask
            for part in (() if mask is None else mask.members)
            if isinstance(part, Padding)
        ),
        None,
    )

    return look(query, key, value, padding_mask, scale)


def supports_pages(query: Tensor) -> bool:
    """The same, where the texts' keys lie in pages (nn/cache/paged.py)."""
    if triton is None or not query.is_cuda or query.shape[2] != 1 or torch.is_grad_enabled():
        return False

    return query.dtype is not torch.float64 and query.shape[3] in (16, 32, 64, 128, 256)


def look_at_pages(
    query: Float[Tensor, "R H 1 D"],
    keys: Float[Tensor, "P K D"],
    values: Float[Tensor, "P K D"],
    at: Int[Tensor, "texts longest"],
    slots: Int[Tensor, "R"],
    lengths: Int[Tensor, "R"],
    longest: int,
) -> Float[Tensor, "R H 1 D"]:
    """One query of each text against all that it has: row r is the text `slots[r]`, whose places
    `at` knows.
    """
    query = query if query.stride(3) == 1 else query.contiguous()
    return launch(
        query, keys, values, None, 1 / math.sqrt(query.shape[3]), (at, slots, lengths, longest)
    )


SCHEMA = "(Tensor query, Tensor key, Tensor value, Tensor? keep, float scale) -> Tensor"


@torch.library.custom_op(
    "qkv::look", mutates_args=(), schema=SCHEMA
)  # so that a compiler takes it as it is
def look(
    query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, scale: float
) -> Tensor:
    if value.stride() != key.stride() or key.stride(3) != 1:
        key, value = key.contiguous(), value.contiguous()

    return launch(
        query if query.stride(3) == 1 else query.contiguous(), key, value, padding_mask, scale
    )


def launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding_mask: Tensor | None,
    scale: float,
    pages: tuple[Tensor, Tensor, Tensor, int] | None = None,
) -> Tensor:
    B, H, _, D = query.shape
    at, slots, lengths, S = (None, None, None, key.shape[2]) if pages is None else pages
    K, parts = key.shape[1], triton.cdiv(S, PART)
    row, head, place = (
        (key.stride(0), key.stride(1), key.stride(2))
        if pages is None
        else (0, key.stride(1), key.stride(0))
    )
    few = (
        B * H < 128
    )  # then each is to be quick; else they are many, and must not take all of the registers
    tile, warps = (min(32768 // D, PART), 8) if few else (8192 // D, 2)
    output = query.new_empty(B, H, parts, D, dtype=query.dtype if parts == 1 else torch.float32)
    sums = query.new_empty(
        2, B, H, parts, dtype=torch.float32
    )  # the largest score, and the sum of the weights
    look_at_part[(B, H, parts)](
        query, key, value, padding_mask, at, slots, lengths, output, sums, S, scale * math.log2(math.e),
        query.stride(0), query.stride(1), row, head, place,
        0 if padding_mask is None else padding_mask.stride(0), 0 if at is None else at.stride(0), sums.stride(0),
        GROUP=H // K, PARTS=parts, D=D, TILE=tile, PART=PART, PADDING_MASK=padding_mask is not None, PAGES=at is not None,
        num_warps=warps,
    )  # fmt: skip

    if parts == 1:
        return output

    top, total = sums  # (B, H, parts)
    weight = torch.exp2(top - top.amax(-1, keepdim=True)) * total
    weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)

    return (
        torch.einsum("bhp,bhpd->bhd", weight, output).unsqueeze(2).to(query.dtype)
    )  # (B, H, 1, D)


@look.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, scale: float
) -> Tensor:
    return query.new_empty(query.shape)


def remember(
    keys: Float[Tensor, "B K S D"],
    values: Float[Tensor, "B K S D"],
    place: Int[Tensor, "1"],
    key: Float[Tensor, "B K 1 D"],
    value: Float[Tensor, "B K 1 D"],
) -> bool:
    """Write a new key and value of each row to a place of its memory, both in one kernel; False
    where it cannot.
    """
    D = key.shape[3]
    fits = (
        key.stride(3) == value.stride(3) == 1
        and key.stride() == value.stride()
        and keys.stride() == values.stride()
    )
    if (
        triton is None
        or not key.is_cuda
        or torch.compiler.is_compiling()
        or not fits
        or value.shape[3] != D
    ):
        return False

    write[(key.shape[0], key.shape[1])](
        keys, values, place, key, value, keys.stride(0), keys.stride(1), keys.stride(2), key.stride(0), key.stride(1),
        D, LANES=triton.next_power_of_2(D), num_warps=1,
    )  # fmt: skip

    return True


if triton is not None:

    @triton.jit
    def write(  # type: ignore[no-untyped-def]
        keys, values, place, key, value, row, head, step, new_row, new_head, D, LANES: tl.constexpr
    ):
        b, h, d = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, LANES)
        to = b * row + h * head + tl.load(place) * step + d
        new = b * new_row + h * new_head + d
        tl.store(keys + to, tl.load(key + new, mask=d < D), mask=d < D)
        tl.store(values + to, tl.load(value + new, mask=d < D), mask=d < D)

    @triton.jit
    def look_at_part(  # type: ignore[no-untyped-def]
        query, key, value, padding_mask, at, slots, lengths, output, sums, S, scale,
        query_row, query_head, key_row, key_head, key_place, keep_row, at_row, next_sum,
        GROUP: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
        PADDING_MASK: tl.constexpr, PAGES: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: a tile of keys after the other, with the softmax corrected as larger
        scores appear.
        """
        row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
        d = tl.arange(0, D)
        q = tl.load(query + row * query_row + head * query_head + d).to(tl.float32) * scale
        shift = row * key_row + (head // GROUP) * key_head
        key += shift
        value += shift
        if PAGES:
            S = tl.load(lengths + row).to(tl.int32)
            at += tl.load(slots + row).to(tl.int64) * at_row

        top = -1e30
        total = 0.0
        found = tl.zeros((D,), tl.float32)

        for first in range(part * PART, tl.minimum(part * PART + PART, S), TILE):
            s = first + tl.arange(0, TILE)
            there = s < S
            if PADDING_MASK:
                there = there & (
                    tl.load(padding_mask + row * keep_row + s, mask=there, other=0) != 0
                )

            place = s
            if PAGES:
                place = tl.load(at + s, mask=there, other=0)

            lies = place[:, None].to(tl.int64) * key_place + d[None, :]
            k = tl.load(key + lies, mask=there[:, None], other=0.0).to(tl.float32)
            v = tl.load(value + lies, mask=there[:, None], other=0.0).to(tl.float32)
            score = tl.where(there, tl.sum(k * q[None, :], 1), -1e30)
            higher = tl.maximum(top, tl.max(score, 0))
            weight = tl.where(there, tl.exp2(score - higher), 0.0)
            less = tl.exp2(top - higher)
            found = found * less + tl.sum(v * weight[:, None], 0)
            total = total * less + tl.sum(weight, 0)
            top = higher

        to = (row * tl.num_programs(1) + head) * PARTS + part
        found = found / tl.where(total > 0, total, 1.0)  # one that may look nowhere gets zeros
        tl.store(output + to * D + d, found.to(output.dtype.element_ty))
        if PARTS > 1:
            tl.store(sums + to, top)
            tl.store(sums + next_sum + to, total)
