"""Decoder blocks for one token of each row on a CPU in one call of the compiled kernels.

Of many rows in float32 only the attention is computed here: their products are faster in oneDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.mask import Causal, Mask
from qkv.nn.block import Block
from qkv.nn.cache.interface import Cache
from qkv.nn.cache.kv_cache import KeyValueCache
from qkv.nn.cache.paged import PackedBatch
from qkv.nn.decode.decode_block import matrices
from qkv.nn.linear import frozen_matrix
from qkv.nn.linear.gemv import ACTIVATIONS
from qkv.nn.linear.linear import Linear, onednn_supports
from qkv.nn.linear.panel_matrix import PanelMatrix
from qkv.nn.native.native_library import (
    LAYER_NORM,
    PANEL,
    RMS_NORM,
    BlockArguments,
    LayerArguments,
    NativeLibrary,
    Product,
    address,
    float_product,
    plain_vector,
)
from qkv.nn.norm import LayerNorm, RMSNorm


def supports_products(block: Block) -> bool:
    """True for norms before the layers, and matrices in float32 or in panels."""
    feed_forward = block.feed_forward
    if not block.attention_residual.before:
        return False
    if feed_forward.activation == "swiglu" and feed_forward.up.out_features % (2 * PANEL):
        return False

    if not all(plain_vector(vector, size) for vector, size in vectors(block)):
        return False

    weights = [layer.weight for layer in matrices(block)]
    if all(isinstance(weight, PanelMatrix) for weight in weights):
        return True

    with torch.no_grad():
        return all(isinstance(w, Tensor) and onednn_supports(w[:1], w) for w in weights)


def vectors(block: Block) -> list[tuple[Tensor | None, int]]:
    """The biases, gains and shifts of a block, and their sizes."""
    found: list[tuple[Tensor | None, int]] = []
    for layer in matrices(block):
        found.append((layer.bias, layer.out_features))
    for residual in (block.attention_residual, block.feed_forward_residual):
        norm = residual.norm
        found.append((norm.gain, block.attention.qkv.in_features))
        if isinstance(norm, LayerNorm):
            found.append((norm.bias, block.attention.qkv.in_features))

    return found


def decodes_only(state: Cache) -> bool:
    """True if every sequence of a packed batch has a past and one new token."""
    if type(state) is not PackedBatch or state.slots is None or len(state.groups) != 1:
        return False

    (group,) = state.groups
    return group.tokens == 1 and group.table_rows is not None and group.lengths is not None


class NativeBlock:
    """One block of a decode step, in C: all of it, or its attention alone.

    Args:
        kernels: The compiled kernels.
        block: An unchanged block in float32. What changes it later must make a new one.
    """

    def __init__(self, kernels: NativeLibrary, block: Block) -> None:
        attention = block.attention
        self.kernels = kernels
        self.layer = attention.layer
        layers = matrices(block)
        self.few_bits = isinstance(layers[0].weight, PanelMatrix)
        # Tensors of their own keep the memory whose addresses are in use, whatever becomes of the
        # parameters.
        self.kept = [tensor.detach() for tensor in (*block.parameters(), *block.buffers())]
        self.has_products = supports_products(block)
        self.arguments = BlockArguments(
            H=attention.heads, K=attention.kv_heads, D=attention.head_width
        )
        if not self.has_products:
            return

        qkv, output, up, down = map(product_of, layers)
        add_norm(qkv, block.attention_residual.norm)
        add_norm(up, block.feed_forward_residual.norm)
        up.activation = ACTIVATIONS[block.feed_forward.activation]
        self.arguments.qkv = qkv
        self.arguments.output = output
        self.arguments.up = up
        self.arguments.down = down

    def can_attend(self, mask: Mask | None, state: Cache) -> bool:
        """True for a mask that is the same in all heads, which a packed batch has no need of."""
        if mask is None or type(mask) is Causal:
            return True

        return type(state) is KeyValueCache and mask.heads == 1

    def can_run(self, rows: int, mask: Mask | None, state: Cache) -> bool:
        """True for few bits with rounded activations, and for the fewest rows of float32."""
        if not self.has_products or not self.can_attend(mask, state):
            return False

        if self.few_bits:
            return frozen_matrix.active.get()

        return rows <= self.kernels.most_float_rows()

    def run(
        self, x: Float[Tensor, "*n E"], mask: Mask | None, rotary: Tensor | None, state: Cache
    ) -> Float[Tensor, "*n E"]:
        """The block's output for one token of each row."""
        return run_together([self], x, mask, rotary, state)

    def attend(
        self, qkv: Float[Tensor, "*n Q"], mask: Mask | None, rotary: Tensor | None, state: Cache
    ) -> Float[Tensor, "*n X"]:
        """The heads of one token of each row, and its keys and values into the cache."""
        flat = qkv.reshape(-1, qkv.shape[-1]).contiguous()  # (B, (H + 2K) D)
        call = LayerCall([self], flat, mask, rotary, state)
        heads = self.kernels.attend(self.arguments, call.layers[0], flat)
        call.finish()

        return heads.view(*qkv.shape[:-1], -1)


def run_together(
    blocks: Sequence[NativeBlock],
    x: Float[Tensor, "*n E"],
    mask: Mask | None,
    rotary: Tensor | None,
    state: Cache,
) -> Float[Tensor, "*n E"]:
    """The output of blocks on top of each other for one token of each row, in one call."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()  # (B, E)
    call = LayerCall(blocks, flat, mask, rotary, state)
    y = blocks[0].kernels.decode_blocks(call.blocks, call.layers, flat)
    call.finish()

    return y.view(x.shape)


class LayerCall:
    """The caches, the angles and the mask of some layers in one step, as the kernels take them.

    Args:
        blocks: Blocks of equal sizes.
        rows: One row for each sequence, whose number counts.
        mask: Which keys the new tokens may attend to.
        rotary: Angles of the new positions.
        state: A `KeyValueCache`, or a `PackedBatch` that `decodes_only`.
    """

    def __init__(
        self,
        blocks: Sequence[NativeBlock],
        rows: Float[Tensor, "B X"],
        mask: Mask | None,
        rotary: Tensor | None,
        state: Cache,
    ) -> None:
        sizes = blocks[0].arguments
        self.numbers = [block.layer for block in blocks]
        self.state = state
        self.blocks = (BlockArguments * len(blocks))(*(block.arguments for block in blocks))
        self.layers = (LayerArguments * len(blocks))()
        self.kept: list[Tensor] = []  # tensors whose addresses are in use
        if isinstance(state, PackedBatch):
            self.use_pages(state)
        else:
            assert isinstance(state, KeyValueCache)
            self.use_rows(state, rows.new_empty(len(rows), sizes.K, 1, sizes.D))

        if rotary is not None:
            self.use_angles(rotary.float().reshape(2, -1, sizes.D))
        if mask is not None and type(mask) is not Causal:
            self.use_mask(mask, len(rows))

    def use_rows(self, cache: KeyValueCache, new: Float[Tensor, "B K 1 D"]) -> None:
        """A cache with a row for each sequence, all of the same length."""
        for arguments, layer in zip(self.layers, self.numbers, strict=True):
            position = cache.make_room(layer, new, new)
            keys, values = cache.buffers[layer]
            for buffer in (keys, values):
                check_heads(buffer, new)

            arguments.keys = keys.data_ptr()
            arguments.values = values.data_ptr()
            arguments.capacity = keys.shape[2]
            arguments.longest = position + 1

    def use_pages(self, batch: PackedBatch) -> None:
        """A paged cache, whose block table has the slots of the new tokens already."""
        (group,) = batch.groups
        table = batch.block_table
        for arguments, layer in zip(self.layers, self.numbers, strict=True):
            arguments.keys = batch.pages.keys[layer].data_ptr()
            arguments.values = batch.pages.values[layer].data_ptr()
            arguments.longest = group.longest
            arguments.table = table.data_ptr()
            arguments.table_rows = address(group.table_rows)
            arguments.table_stride = table.shape[1]
            arguments.lengths = address(group.lengths)

    def use_angles(self, rotary: Float[Tensor, "2 A D"]) -> None:
        """The cosines and sines of all rows, or of each."""
        rotary = rotary.contiguous()
        self.kept.append(rotary)
        for arguments in self.layers:
            arguments.cos = rotary[0].data_ptr()
            arguments.sin = rotary[1].data_ptr()
            arguments.angle_stride = rotary.shape[2] if rotary.shape[1] > 1 else 0

    def use_mask(self, mask: Mask, rows: int) -> None:
        """The keys that each row may attend to."""
        longest = self.layers[0].longest
        matrix = mask.materialise(1, longest, torch.device("cpu"))  # (#B, 1, 1, S)
        allowed = matrix[:, 0, 0].expand(rows, -1).bool().contiguous()
        self.kept.append(allowed)
        for arguments in self.layers:
            arguments.allowed = allowed.data_ptr()

    def finish(self) -> None:
        """Count the new position, which the cache has now."""
        if isinstance(self.state, KeyValueCache):
            for arguments, layer in zip(self.layers, self.numbers, strict=True):
                self.state.lengths[layer] = arguments.longest


def check_heads(buffer: Float[Tensor, "B K S D"], new: Float[Tensor, "B K 1 D"]) -> None:
    """Raise an error unless a cache has float32 heads of the block's sizes."""
    if buffer.dtype != torch.float32 or buffer.shape[1::2] != new.shape[1::2]:
        raise ValueError(
            f"state: expected a cache of {new.shape[1]} float32 heads of width {new.shape[3]}, "
            f"not of {buffer.shape[1]} {buffer.dtype} heads of width {buffer.shape[3]}"
        )


def product_of(layer: Linear) -> Product:
    """The arguments of a linear layer's product."""
    weight: Any = layer.weight
    if isinstance(weight, PanelMatrix):
        return weight.product(layer.bias)

    return float_product(weight, layer.bias)


def add_norm(product: Product, norm: Any) -> None:
    """Let a product begin with a norm of its input."""
    assert isinstance(norm, LayerNorm | RMSNorm)
    product.norm = LAYER_NORM if isinstance(norm, LayerNorm) else RMS_NORM
    product.epsilon = norm.epsilon
    product.gain = norm.gain.data_ptr()
    if isinstance(norm, LayerNorm):
        product.shift = norm.bias.data_ptr()
