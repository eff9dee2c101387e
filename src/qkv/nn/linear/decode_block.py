"""One row on a GPU: a block in five kernels instead of fifteen, for decoding one text.

One row times a matrix takes as long as memory needs to bring the matrix. What comes before and
after it (norm, bias, activation, residual) is done on the way, because each of them, as a kernel of
its own, would take as long as a matrix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.cache import StaticCache
from qkv.nn.norm import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from qkv.nn.block import Block

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with PyTorch where there is a GPU to use it
    triton = None

ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "swiglu": 5, "relu2": 6}
NARROW = 1024  # up to this width every program of a matrix norms the row for itself
LONGEST = 4096  # of a memory: one program looks at all of it


def supports_row(x: Tensor, *weights: Tensor | object) -> bool:
    """One row of half precision, and nobody asks for a gradient; a compiler would rather see plain
    code.
    """
    if triton is None or not x.is_cuda or x.numel() != x.shape[-1] or torch.compiler.is_compiling():
        return False
    if (
        x.dtype not in (torch.bfloat16, torch.float16)
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cuda")
    ):
        return False

    return all(isinstance(w, Tensor) and w.dtype == x.dtype and w.stride(-1) == 1 for w in weights)


def supports_block(block: Block, x: Tensor, state: object) -> bool:
    """A decoder's block with its norm before, which nobody listens to, and a memory of fixed size."""
    if triton is None or not isinstance(state, StaticCache) or not supports_row(x):
        return False

    attention, forward = block.attention, block.feed_forward
    layers = (attention.qkv, attention.output, forward.up, forward.down)
    plain = supports_row(x, *(each.weight for each in layers)) and all(
        each.adapters is None for each in layers
    )
    if (
        not plain
        or block.training
        or not block.attention_residual.before
        or block.cross_attention is not None
    ):
        return False
    if attention.relative is not None or attention.head_width not in (16, 32, 64, 128, 256):
        return False
    if state.capacity > LONGEST:
        return False

    return not any(each.listeners for each in (block.hooks, attention.hooks, forward.hooks))


def through(
    block: Block,
    x: Float[Tensor, "1 1 E"],
    rotary: Float[Tensor, "2 1 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "1 1 E"]:
    """What `Block.forward` does."""
    attention, forward = block.attention, block.feed_forward
    qkv = times(
        x, attention.qkv.weight, attention.qkv.bias, norm=block.attention_residual.norm
    )  # (1, 1, (H + 2K) D)
    heads = remember_and_look(qkv, attention.heads, attention.layer, rotary, state)  # (1, 1, H D)
    x = times(heads, attention.output.weight, attention.output.bias, residual=x)
    norm = block.feed_forward_residual.norm
    hidden = times(
        x, forward.up.weight, forward.up.bias, norm=norm, activation=ACTIVATIONS[forward.activation]
    )

    return times(hidden, forward.down.weight, forward.down.bias, residual=x)


def times(
    x: Float[Tensor, "*n E"],
    weight: Float[Tensor, "N E"],
    bias: Float[Tensor, "N"] | None = None,
    *,
    norm: LayerNorm | RMSNorm | None = None,
    activation: int = 0,
    residual: Float[Tensor, "*n N"] | None = None,
) -> Float[Tensor, "*n R"]:
    """residual + activation(norm(x) W^T + bias)"""
    E = weight.shape[1]
    N = weight.shape[0] // (2 if activation == ACTIVATIONS["swiglu"] else 1)
    output, whole = x.new_empty(*x.shape[:-1], N), triton.next_power_of_2(E)
    gain, shift = (
        (None, None)
        if norm is None
        else (norm.gain, norm.bias if isinstance(norm, LayerNorm) else None)
    )
    epsilon = 0.0 if norm is None else norm.epsilon
    if norm is not None and E > NARROW:
        row = torch.empty_like(x)
        norm_row[(1,)](
            x, gain, shift, row, E, epsilon, LANES=whole, SHIFT=shift is not None, num_warps=4
        )
        x, norm, gain, shift = row, None, None, None

    rows, lanes, warps = (2, min(whole, 1024), 4 if N < 5000 else 1)
    if norm is not None:
        rows, lanes, warps = (4, whole, 2)
    elif N > 16384:
        rows, lanes, warps = (4, min(whole, 512), 1)

    times_row[(triton.cdiv(N, rows),)](
        x, gain, shift, weight, bias, residual, output, N, E, weight.stride(0), epsilon,
        ROWS=rows, LANES=lanes, NORM=norm is not None, SHIFT=shift is not None, ACTIVATION=activation,
        BIAS=bias is not None, RESIDUAL=residual is not None, num_warps=warps,
    )  # fmt: skip

    return output


def remember_and_look(
    qkv: Float[Tensor, "1 1 R"],
    heads: int,
    layer: int,
    rotary: Float[Tensor, "2 1 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "1 1 N"]:
    """The new key and value join the memory, and every head looks at all of it."""
    keys, values = state.buffers[layer]  # (1, K, S, D)
    _, K, S, D = keys.shape
    output = qkv.new_empty(1, 1, heads * D)
    tile = min(triton.next_power_of_2(S), 32768 // D)
    look_at_all[(heads,)](
        qkv, rotary, keys, values, state.place, state.padding_mask, output, S, math.log2(math.e) / math.sqrt(D),
        keys.stride(1), keys.stride(2), values.stride(1), values.stride(2),
        HEADS=heads, KV_HEADS=K, D=D, TILE=tile, ROTARY=rotary is not None, num_warps=8,
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def normed(x, gain, shift, e, E, epsilon, SHIFT: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
        """LayerNorm, or RMSNorm where there is no shift, of a row that lies in one program's
        registers.
        """
        row = tl.load(x + e, mask=e < E, other=0.0).to(tl.float32)
        square = tl.sum(row * row, 0) / E
        if SHIFT:
            mean = tl.sum(row, 0) / E
            square -= mean * mean
            row -= mean

        row = (
            row
            * tl.rsqrt(square + epsilon)
            * tl.load(gain + e, mask=e < E, other=0.0).to(tl.float32)
        )
        if SHIFT:
            row += tl.load(shift + e, mask=e < E, other=0.0).to(tl.float32)

        return row.to(dtype).to(tl.float32)  # rounded wherever plain code would round it

    @triton.jit
    def norm_row(x, gain, shift, output, E, epsilon, LANES: tl.constexpr, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
        dtype: tl.constexpr = output.dtype.element_ty
        e = tl.arange(0, LANES)
        tl.store(
            output + e, normed(x, gain, shift, e, E, epsilon, SHIFT, dtype).to(dtype), mask=e < E
        )

    @triton.jit
    def times_row(  # type: ignore[no-untyped-def]
        x, gain, shift, weight, bias, residual, output, N, E, stride, epsilon,
        ROWS: tl.constexpr, LANES: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, ACTIVATION: tl.constexpr,
        BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    ):  # fmt: skip
        """Each program reads ROWS rows of the matrix once; if there is a norm, then with all of x
        at once.
        """
        dtype: tl.constexpr = output.dtype.element_ty
        GATED: tl.constexpr = (
            ACTIVATION == 5
        )  # swiglu: a row that gates and, N rows further, one that is gated
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        at = weight + n[:, None].to(tl.int64) * stride
        total = tl.zeros((ROWS, LANES), tl.float32)
        gated = tl.zeros((ROWS, LANES), tl.float32)

        for first in range(0, E, LANES):
            e = first + tl.arange(0, LANES)
            there = (n[:, None] < N) & (e[None, :] < E)
            w = tl.load(at + e[None, :], mask=there, other=0.0)
            if NORM:
                row = normed(x, gain, shift, e, E, epsilon, SHIFT, dtype)
            else:
                row = tl.load(x + e, mask=e < E, other=0.0).to(tl.float32)

            total += w.to(tl.float32) * row[None, :]
            if GATED:
                w = tl.load(at + N.to(tl.int64) * stride + e[None, :], mask=there, other=0.0)
                gated += w.to(tl.float32) * row[None, :]

        found = tl.sum(total, 1)
        if BIAS:
            found += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)

        found = found.to(dtype).to(tl.float32)
        if ACTIVATION == 1:
            found = tl.maximum(found, 0.0)

        if ACTIVATION == 2:
            found = 0.5 * found * (1.0 + tl.erf(found * 0.7071067811865476))

        if ACTIVATION == 3:
            inner = 0.7978845608028654 * (found + 0.044715 * found * found * found)
            found = found * tl.sigmoid(2.0 * inner)

        if ACTIVATION == 4:
            found = found * tl.sigmoid(found)

        if GATED:
            up = tl.sum(gated, 1)
            if BIAS:
                up += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)

            gate = (found * tl.sigmoid(found)).to(dtype).to(tl.float32)
            found = gate * up.to(dtype).to(tl.float32)

        if ACTIVATION == 6:
            found = tl.maximum(found, 0.0)
            found = found * found

        if RESIDUAL:
            found = found.to(dtype).to(tl.float32) + tl.load(
                residual + n, mask=n < N, other=0.0
            ).to(tl.float32)

        tl.store(output + n, found.to(dtype), mask=n < N)

    @triton.jit
    def turned(x, rotary, d, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """The rotary turn of one head: dimensions d and d + D/2 make a pair."""
        dtype: tl.constexpr = x.dtype.element_ty
        cos = tl.load(rotary + d).to(dtype).to(tl.float32)
        sin = tl.load(rotary + D + d).to(dtype).to(tl.float32)
        own = tl.load(x + d).to(tl.float32)
        other = tl.load(x + (d + D // 2) % D).to(tl.float32)

        return own * cos + tl.where(d < D // 2, -other, other) * sin

    @triton.jit
    def look_at_all(  # type: ignore[no-untyped-def]
        qkv, rotary, keys, values, place, padding_mask, output, S, scale, key_head, key_place, value_head, value_place,
        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, ROTARY: tl.constexpr,
    ):  # fmt: skip
        """One head: the new key and value are taken as they come, all earlier ones from memory,
        tile by tile.
        """
        dtype: tl.constexpr = output.dtype.element_ty
        head = tl.program_id(0)
        group: tl.constexpr = HEADS // KV_HEADS
        own = head // group
        d = tl.arange(0, D)
        new_key = qkv + (HEADS + own) * D
        v = tl.load(qkv + (HEADS + KV_HEADS + own) * D + d)
        if ROTARY:
            q = turned(qkv + head * D, rotary, d, D)
            k = turned(new_key, rotary, d, D).to(dtype)
            q = q.to(dtype).to(tl.float32) * scale
        else:
            q = tl.load(qkv + head * D + d).to(tl.float32) * scale
            k = tl.load(new_key + d)

        at = tl.load(place)
        keys += own * key_head
        values += own * value_head
        if head % group == 0:
            tl.store(keys + at * key_place + d, k)
            tl.store(values + at * value_place + d, v)

        top = tl.sum(k.to(tl.float32) * q, 0)
        total = 1.0
        found = v.to(tl.float32)

        for first in range(0, S, TILE):
            s = first + tl.arange(0, TILE)
            there = (s < S) & (s != at)
            there = there & (tl.load(padding_mask + s, mask=there, other=0) != 0)
            old = tl.load(
                keys + s[:, None] * key_place + d[None, :], mask=there[:, None], other=0.0
            ).to(tl.float32)
            said = tl.load(
                values + s[:, None] * value_place + d[None, :], mask=there[:, None], other=0.0
            )
            score = tl.where(there, tl.sum(old * q[None, :], 1), -1e30)
            higher = tl.maximum(top, tl.max(score, 0))
            weight = tl.where(there, tl.exp2(score - higher), 0.0)
            less = tl.exp2(top - higher)
            found = found * less + tl.sum(said.to(tl.float32) * weight[:, None], 0)
            total = total * less + tl.sum(weight, 0)
            top = higher

        tl.store(output + head * D + d, (found / total).to(dtype))
