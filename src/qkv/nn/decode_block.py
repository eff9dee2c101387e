"""A decoder block for one row on a GPU in five Triton kernels instead of fifteen.

`installed` lets the blocks of a model use it for steps with a `StaticCache`, with the same numbers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Mask
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Block, Residual
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.cache.static import StaticCache
from qkv.nn.feed_forward import FeedForward
from qkv.nn.linear import gemv
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm, RMSNorm
from qkv.nn.unchanged import same_computation, unchanged

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

LONGEST = 4096  # positions of a cache: one program reads all of them
INSTALLING = threading.RLock()  # one thread at a time changes a model's blocks
HEAD_WIDTHS = (16, 32, 64, 128, 256)


@contextmanager
def installed(model: nn.Module) -> Iterator[None]:
    """Let the plain blocks of a model compute decode steps this way while the context is open."""
    forwards: dict[Block, Any] = {}
    INSTALLING.acquire()
    for module in model.modules():
        if type(module) is Block and is_plain(module):
            forwards[module] = vars(module).get("forward")
            module.forward = same_computation(partial(decode_block, module))  # type: ignore

    try:
        yield
    finally:
        for block, forward in forwards.items():
            del block.forward
            if forward is not None:
                block.forward = forward  # type: ignore[method-assign]

        INSTALLING.release()


def decode_block(
    block: Block,
    x: Float[Tensor, "B T E"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
    state: Cache = NO_STATE,
) -> Float[Tensor, "B T E"]:
    """`Block.forward` by the kernels below where they can compute it."""
    if supports(block, x, state):
        return run(block, x, rotary, cast(StaticCache, state))

    return Block.forward(block, x, mask=mask, bias=bias, rotary=rotary, state=state)


def supports(block: Block, x: Tensor, state: object) -> bool:
    """True for one row through a decoder block with pre-norm, without hooks or adapters."""
    if triton is None or not isinstance(state, StaticCache) or state.capacity > LONGEST:
        return False
    if block.training or not block.attention_residual.before or block.cross_attention is not None:
        return False

    attention = block.attention
    if attention.relative is not None or attention.head_width not in HEAD_WIDTHS:
        return False

    layers = matrices(block)
    if not gemv.supports(x, *(layer.weight for layer in layers)):
        return False
    if any(layer.adapters is not None for layer in layers):
        return False

    points = (block.hooks, attention.hooks, block.feed_forward.hooks)
    return not any(hooks.callbacks for hooks in points)


def matrices(block: Block) -> tuple[Linear, ...]:
    attention = block.attention
    feed_forward = block.feed_forward
    return attention.qkv, attention.output, feed_forward.up, feed_forward.down


def is_plain(block: Block) -> bool:
    """True if the block and its parts are unchanged modules of the classes computed here."""
    if not unchanged(block, Block) or not unchanged(block.attention, MultiHeadAttention):
        return False
    if not unchanged(block.feed_forward, FeedForward):
        return False
    if block.feed_forward.activation not in gemv.ACTIVATIONS:
        return False
    if not all(unchanged(layer, Linear) for layer in matrices(block)):
        return False

    for residual in (block.attention_residual, block.feed_forward_residual):
        if not unchanged(residual, Residual) or not unchanged(residual.dropout, nn.Dropout):
            return False
        if not unchanged(residual.norm, LayerNorm, RMSNorm):
            return False

    return True


def run(
    block: Block,
    x: Float[Tensor, "1 1 E"],
    rotary: Float[Tensor, "2 1 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "1 1 E"]:
    """Norm, attention, residual, norm, feed-forward, residual."""
    qkv, output, up, down = matrices(block)
    norm = block.attention_residual.norm
    projected = gemv.linear_row(x, qkv.weight, qkv.bias, norm=norm)  # (1, 1, (H + 2K) D)
    heads = attend_and_store(projected, block.attention, rotary, state)  # (1, 1, H D)
    x = gemv.linear_row(heads, output.weight, output.bias, residual=x)

    norm = block.feed_forward_residual.norm
    activation = gemv.ACTIVATIONS[block.feed_forward.activation]
    hidden = gemv.linear_row(x, up.weight, up.bias, norm=norm, activation=activation)

    return gemv.linear_row(hidden, down.weight, down.bias, residual=x)


def attend_and_store(
    qkv: Float[Tensor, "1 1 R"],
    attention: MultiHeadAttention,
    rotary: Float[Tensor, "2 1 1 1 D"] | None,
    state: StaticCache,
) -> Float[Tensor, "1 1 N"]:
    """Write the new key and value into the cache, and let every head attend to all of it."""
    keys, values = state.buffers[attention.layer]  # (1, K, S, D)
    heads = attention.heads
    _, K, S, D = keys.shape
    output = qkv.new_empty(1, 1, heads * D)
    tile = min(triton.next_power_of_2(S), 32768 // D)
    attend_head[(heads,)](
        qkv, rotary, keys, values, state.slot, state.padding_mask, output, S,
        math.log2(math.e) / math.sqrt(D),
        keys.stride(1), keys.stride(2), values.stride(1), values.stride(2),
        HEADS=heads, KV_HEADS=K, D=D, TILE=tile, ROTARY=rotary is not None, num_warps=8,
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def rotated(x, rotary, d, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """Rotary positions of one head: dimensions d and d + D/2 are a pair."""
        dtype: tl.constexpr = x.dtype.element_ty
        cos = tl.load(rotary + d).to(dtype).to(tl.float32)
        sin = tl.load(rotary + D + d).to(dtype).to(tl.float32)
        first = tl.load(x + d).to(tl.float32)
        second = tl.load(x + (d + D // 2) % D).to(tl.float32)

        return first * cos + tl.where(d < D // 2, -second, second) * sin

    @triton.jit
    def attend_head(  # type: ignore[no-untyped-def]
        qkv, rotary, keys, values, slot, padding_mask, output, S, scale,
        key_head, key_slot, value_head, value_slot,
        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
        ROTARY: tl.constexpr,
    ):  # fmt: skip
        """One head: the new key and value from `qkv`, earlier ones from the cache, tile by tile."""
        dtype: tl.constexpr = output.dtype.element_ty
        head = tl.program_id(0)
        group: tl.constexpr = HEADS // KV_HEADS
        kv_head = head // group
        d = tl.arange(0, D)
        new_key = qkv + (HEADS + kv_head) * D
        v = tl.load(qkv + (HEADS + KV_HEADS + kv_head) * D + d)
        if ROTARY:
            q = rotated(qkv + head * D, rotary, d, D)
            k = rotated(new_key, rotary, d, D).to(dtype)
            q = q.to(dtype).to(tl.float32) * scale
        else:
            q = tl.load(qkv + head * D + d).to(tl.float32) * scale
            k = tl.load(new_key + d)

        new_slot = tl.load(slot)
        keys += kv_head * key_head
        values += kv_head * value_head
        if head % group == 0:
            tl.store(keys + new_slot * key_slot + d, k)
            tl.store(values + new_slot * value_slot + d, v)

        # Online softmax, which begins with the new position.
        top = tl.sum(k.to(tl.float32) * q, 0)
        total = 1.0
        weighted = v.to(tl.float32)

        for first in range(0, S, TILE):
            s = first + tl.arange(0, TILE)
            visible = (s < S) & (s != new_slot)
            visible = visible & (tl.load(padding_mask + s, mask=visible, other=0) != 0)
            key_offset = s[:, None] * key_slot + d[None, :]
            value_offset = s[:, None] * value_slot + d[None, :]
            old_keys = tl.load(keys + key_offset, mask=visible[:, None], other=0.0)
            old_values = tl.load(values + value_offset, mask=visible[:, None], other=0.0)
            score = tl.sum(old_keys.to(tl.float32) * q[None, :], 1)
            score = tl.where(visible, score, -1e30)

            new_top = tl.maximum(top, tl.max(score, 0))
            weight = tl.where(visible, tl.exp2(score - new_top), 0.0)
            rescale = tl.exp2(top - new_top)
            weighted = weighted * rescale + tl.sum(old_values.to(tl.float32) * weight[:, None], 0)
            total = total * rescale + tl.sum(weight, 0)
            top = new_top

        tl.store(output + head * D + d, (weighted / total).to(dtype))
