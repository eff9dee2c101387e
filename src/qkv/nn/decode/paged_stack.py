"""A decoder's blocks over a paged cache on a GPU: new tokens of many sequences in one row.

A layer of a decode step is seven kernels: four matrix products; attention, which also writes the
new keys and values into the pages; and twice a residual with the norm that follows it. Prompts are
read with the same products and norms. `installed` lets the stacks of a model use it, with the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.attention.kernels.decode import HEAD_WIDTHS
from qkv.nn.attention.mask import Causal, Mask
from qkv.nn.block import Block, Stack
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.cache.packed_prompts import PackedPrompts
from qkv.nn.cache.paged import PackedBatch
from qkv.nn.decode.decode_block import is_plain, matrices
from qkv.nn.decode.decode_step import INSTALLING, embed, is_plain_embedding
from qkv.nn.decode.paged_attention import attend_and_store
from qkv.nn.decode.prompt_attention import attend_prompts
from qkv.nn.embedding import Embedding
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm, RMSNorm
from qkv.nn.unchanged import same_computation, unchanged

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 16384  # numbers of a residual vector in one program's registers


class PlainParts(NamedTuple):
    """The parts of a model that `installed` may change."""

    stacks: list[Stack]
    embeddings: list[Embedding]


def plain_parts(model: nn.Module) -> PlainParts:
    """The unchanged stacks and embeddings of a model; they must not change afterwards."""
    parts = PlainParts([], [])
    if triton is None:
        return parts

    for module in model.modules():
        if type(module) is Stack and has_plain_blocks(module):
            parts.stacks.append(module)
        elif type(module) is Embedding and is_plain_embedding(module):
            parts.embeddings.append(module)

    return parts


@contextmanager
def installed(parts: PlainParts) -> Iterator[None]:
    """Let plain parts compute steps with a paged cache this way while the context is open."""
    with INSTALLING:
        for stack in parts.stacks:
            stack.forward = same_computation(partial(paged_stack, stack))  # type: ignore
        for embedding in parts.embeddings:
            embedding.forward = same_computation(partial(embed, embedding))  # type: ignore

        try:
            yield
        finally:
            for module in (*parts.stacks, *parts.embeddings):
                del module.forward


def paged_stack(
    stack: Stack,
    x: Float[Tensor, "B T E"],
    positions: Int[Tensor, "#B T"],
    *,
    mask: Mask | None = None,
    state: Cache = NO_STATE,
) -> Float[Tensor, "B T E"]:
    """`Stack.forward` by the kernels below where they can compute it."""
    if isinstance(state, PackedBatch | PackedPrompts) and supports(stack, x, mask, state):
        return run(stack, x, positions, mask, state)

    return Stack.forward(stack, x, positions, mask=mask, state=state)


def has_plain_blocks(stack: Stack) -> bool:
    """True if the stack and its parts are unchanged modules of the classes computed here."""
    if "forward" in vars(stack) or stack.cross:
        return False
    if stack.norm is not None and not unchanged(stack.norm, LayerNorm, RMSNorm):
        return False

    return all(type(block) is Block and is_plain(block) for block in stack.blocks)


def supports(
    stack: Stack, x: Tensor, mask: Mask | None, state: PackedBatch | PackedPrompts
) -> bool:
    """True for new tokens of sequences on a GPU, pre-norm, without hooks, adapters or biases."""
    if not x.is_cuda or torch.is_grad_enabled() or stack.training or stack.hooks.callbacks:
        return False
    if x.dtype not in DTYPES or x.shape[-1] > WIDEST or torch.is_autocast_enabled("cuda"):
        return False
    if mask is not None and type(mask) is not Causal:
        return False
    if stack.position.bias(x.device) is not None:
        return False
    if not decodes(state) and not reads_prompts(state):
        return False

    return all(supports_block(block, x) for block in stack.blocks)


def decodes(state: PackedBatch | PackedPrompts) -> TypeGuard[PackedBatch]:
    """Whether every sequence has one new token after others."""
    if isinstance(state, PackedPrompts) or state.slots is None or len(state.groups) != 1:
        return False

    group = state.groups[0]
    return group.tokens == 1 and group.table_rows is not None and group.lengths is not None


def reads_prompts(state: PackedBatch | PackedPrompts) -> bool:
    """Whether all new tokens are the first ones of their sequences, or described by tiles."""
    if isinstance(state, PackedPrompts):
        return True

    return state.slots is not None and all(group.table_rows is None for group in state.groups)


def supports_block(block: Any, x: Tensor) -> bool:
    attention = block.attention
    if not block.attention_residual.before or not block.feed_forward_residual.before:
        return False
    if attention.relative is not None or attention.head_width not in HEAD_WIDTHS:
        return False

    for layer in matrices(block):
        weight = layer.weight
        if layer.adapters is not None or not isinstance(weight, Tensor) or weight.dtype != x.dtype:
            return False

    points = (block.hooks, attention.hooks, block.feed_forward.hooks)
    return not any(hooks.callbacks for hooks in points)


def run(
    stack: Stack,
    x: Float[Tensor, "1 N E"],
    positions: Int[Tensor, "#B T"],
    mask: Mask | None,
    state: PackedBatch | PackedPrompts,
) -> Float[Tensor, "1 N E"]:
    """Each residual is added in the kernel of the norm that comes next."""
    x = stack.position.add(x, positions)
    rotary = stack.position.angles(positions)
    residual = x[0].clone()  # (N, E), which is changed in place
    blocks: list[Any] = list(stack.blocks)
    hidden = blocks[0].attention_residual.norm(residual)
    for number, block in enumerate(blocks):
        qkv, output, _, _ = matrices(block)
        projected = F.linear(hidden, qkv.weight, qkv.bias)  # (N, (H + 2K) D)
        if decodes(state):
            heads = attend_and_store(projected, block.attention, rotary, state)  # (N, H D)
        else:
            heads = attend_prompts(projected, block.attention, rotary, mask, state)

        update = F.linear(heads, output.weight, output.bias)
        hidden = add_and_norm(residual, update, block.feed_forward_residual.norm)

        update = feed_forward(block, hidden)
        following: Any = stack.norm
        if number + 1 < len(blocks):
            following = blocks[number + 1].attention_residual.norm

        hidden = add_and_norm(residual, update, following)

    return hidden.unsqueeze(0)


def feed_forward(block: Any, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    """Both layers; GPT-2's activation is computed in the matrix product."""
    layer = block.feed_forward
    up: Linear = layer.up
    down: Linear = layer.down
    if layer.activation == "gelu_tanh" and up.bias is not None and x.dtype != torch.float32:
        hidden = torch._addmm_activation(up.bias, x, up.weight.t(), use_gelu=True)
    else:
        hidden = layer.activate(F.linear(x, up.weight, up.bias))

    return F.linear(hidden, down.weight, down.bias)


def add_and_norm(
    residual: Float[Tensor, "R E"], update: Float[Tensor, "R E"], norm: LayerNorm | RMSNorm | None
) -> Float[Tensor, "R E"]:
    """Add the update to the residual stream in place; returns its norm."""
    if norm is None:
        residual += update
        return residual

    R, E = residual.shape
    shift = norm.bias if isinstance(norm, LayerNorm) else None
    output = torch.empty_like(residual)
    lanes = triton.next_power_of_2(E)
    add_and_norm_row[(R,)](
        residual, update, norm.gain, shift, output, E, norm.epsilon,
        LANES=lanes, SHIFT=shift is not None, num_warps=min(8, max(1, lanes // 256)),
    )  # fmt: skip

    return output


if triton is not None:

    @triton.jit
    def add_and_norm_row(  # type: ignore[no-untyped-def]
        residual, update, gain, shift, output, E, epsilon,
        LANES: tl.constexpr, SHIFT: tl.constexpr,
    ):  # fmt: skip
        """The residual stream of one row, and its LayerNorm, or RMSNorm without a shift."""
        row = tl.program_id(0).to(tl.int64) * E
        e = tl.arange(0, LANES)
        inside = e < E
        x = tl.load(residual + row + e, mask=inside, other=0.0)
        dtype: tl.constexpr = residual.dtype.element_ty
        x = x.to(tl.float32) + tl.load(update + row + e, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype)
        tl.store(residual + row + e, x, mask=inside)

        x = x.to(tl.float32)
        if SHIFT:
            x = tl.where(inside, x - tl.sum(x, 0) / E, 0.0)

        variance = tl.sum(x * x, 0) / E
        weight = tl.load(gain + e, mask=inside, other=0.0).to(tl.float32)
        x = x * tl.rsqrt(variance + epsilon) * weight
        if SHIFT:
            x += tl.load(shift + e, mask=inside, other=0.0).to(tl.float32)

        tl.store(output + row + e, x.to(dtype), mask=inside)
