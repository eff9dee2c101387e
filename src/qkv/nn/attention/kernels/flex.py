"""FlexAttention on a GPU, which skips the tiles that a sparse mask leaves empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from qkv.nn.attention.bias import Distance
from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Mask, Window
from qkv.nn.attention.sparse_mask import Blockwise, Document

SIZE = 128  # FlexAttention's tile
HAS_TRITON = find_spec("triton") is not None


def supports(call: AttentionCall) -> bool:
    """On a GPU, if a mask leaves tiles empty or a bias need not be materialised."""
    query = call.query
    if not (query.is_cuda and HAS_TRITON) or query.dtype is torch.float64 or call.dropout > 0:
        return False  # FlexAttention has none of these
    if query.shape[2] < SIZE or call.key.shape[2] < 4 * SIZE or query.shape[3] < 16:
        return False  # not worth it, and heads have a width of 16 or more

    if call.bias is not None:
        return isinstance(call.bias, Distance) and not call.bias.slopes.requires_grad
    if call.mask is None:
        return False

    return any(isinstance(part, Window | Blockwise | Document) for part in call.mask.members)


def run(call: AttentionCall) -> Float[Tensor, "B H T X"]:
    query, key, value, mask, bias, scale, dropout = call
    if dropout:
        raise ValueError("kernel flex: it has no dropout; leave out kernel")

    T = query.shape[-2]
    S = key.shape[-2]
    offset = S - T

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert bias is not None
        return score + bias.at(b, h, q + offset, k).to(score.dtype)

    compiling = torch.compiler.is_compiling()
    kernel: Callable[..., Any] = flex_attention
    if query.is_cuda and not compiling:
        kernel = compiled()

    compute: Callable[[], Tensor] = partial(
        kernel,
        query,
        key,
        value,
        score_mod=None if bias is None else add_bias,
        block_mask=None if mask is None else block_mask(mask, T, S, query.device),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )

    if compiling:
        return compute()

    # A kernel is compiled for each kind of mask. Past its limit torch.compile would silently run
    # FlexAttention uncompiled, which materialises all (T, S) scores.
    with torch._dynamo.config.patch(recompile_limit=256):
        return compute()


def block_mask(mask: Mask, T: int, S: int, device: torch.device) -> BlockMask:
    """The mask as FlexAttention takes it: the tiles to visit, and the question inside them."""
    if torch.compiler.is_compiling():
        return new_block_mask(mask, T, S, device)

    known = mask.__dict__.setdefault("block_masks", {})  # the layers of a model share one mask
    if (T, S, device) not in known:
        known[T, S, device] = new_block_mask(mask, T, S, device)

    return known[T, S, device]


def new_block_mask(mask: Mask, T: int, S: int, device: torch.device) -> BlockMask:
    offset = S - T
    rows = mask.rows
    heads = mask.heads

    def allows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask.allows(b if rows > 1 else 0, h if heads > 1 else 0, q + offset, k)

    layout = mask.layout(T, S, SIZE, device)  # (B, N, M)
    if layout is None:
        layout = torch.ones(1, -(-T // SIZE), -(-S // SIZE), dtype=torch.bool, device=device)

    # The number of tiles to visit in each row of tiles, and those tiles before all others.
    count = layout.sum(-1, dtype=torch.int32)  # (B, N)
    order = layout.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)

    return BlockMask.from_kv_blocks(
        count.unsqueeze(1), order.unsqueeze(1), BLOCK_SIZE=SIZE, mask_mod=allows, seq_lengths=(T, S)
    )


@cache
def compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


register_kernel("flex", supports, run, rank=20)
