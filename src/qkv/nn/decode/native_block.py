"""A decoder block for one token of each row on a CPU in one call of the compiled kernels."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.mask import Causal, Mask
from qkv.nn.block import Block
from qkv.nn.cache.kv_cache import KeyValueCache
from qkv.nn.decode.decode_block import matrices
from qkv.nn.linear import frozen_matrix
from qkv.nn.linear.gemv import ACTIVATIONS
from qkv.nn.linear.linear import Linear, onednn_supports
from qkv.nn.linear.panel_matrix import PanelMatrix
from qkv.nn.native import native_library
from qkv.nn.native.native_library import (
    FLOAT32,
    PANEL,
    BlockArguments,
    LayerArguments,
    Product,
    address,
)
from qkv.nn.norm import LayerNorm, RMSNorm

LAYER_NORM = 1
RMS_NORM = 2


def supports(block: Block) -> bool:
    """True for norms before the layers, and matrices in float32 or in panels."""
    if native_library.library() is None or not block.attention_residual.before:
        return False
    if block.feed_forward.activation == "swiglu" and block.feed_forward.up.out_features % (
        2 * PANEL
    ):
        return False

    weights = [layer.weight for layer in matrices(block)]
    if all(isinstance(weight, PanelMatrix) for weight in weights):
        return True

    with torch.no_grad():
        return all(isinstance(w, Tensor) and onednn_supports(w[:1], w) for w in weights)


class CompiledBlock:
    """One block: `Block.forward` of a decode step, in C.

    Args:
        block: A block that `supports` accepts. What changes it later must make a new one.
    """

    def __init__(self, block: Block) -> None:
        attention = block.attention
        self.layer = attention.layer
        self.width = attention.kv_heads, attention.head_width
        self.layers = matrices(block)  # keeps the weights alive
        self.few_bits = isinstance(self.layers[0].weight, PanelMatrix)

        qkv, output, up, down = map(product_of, self.layers)
        add_norm(qkv, block.attention_residual.norm)
        add_norm(up, block.feed_forward_residual.norm)
        up.activation = ACTIVATIONS[block.feed_forward.activation]
        self.arguments = BlockArguments(
            qkv, output, up, down, attention.heads, attention.kv_heads, attention.head_width
        )

    def can_run(self, x: Float[Tensor, "B 1 E"], mask: Mask | None) -> bool:
        """True for few bits with rounded activations, and for one row of float32."""
        if mask is not None and type(mask) is not Causal and mask.heads > 1:
            return False

        return frozen_matrix.active.get() if self.few_bits else len(x) == 1

    def run(
        self,
        x: Float[Tensor, "B 1 E"],
        mask: Mask | None,
        rotary: Float[Tensor, "2 #B 1 1 D"] | None,
        state: KeyValueCache,
    ) -> Float[Tensor, "B 1 E"]:
        B = len(x)
        K, D = self.width
        new = x.new_empty(B, K, 1, D)
        position = state.make_room(self.layer, new, new)
        keys, values = state.buffers[self.layer]
        layer = LayerArguments(keys.data_ptr(), values.data_ptr(), keys.shape[2], position)

        if rotary is not None:
            rotary = rotary.float().contiguous()
            layer.cos = rotary[0].data_ptr()
            layer.sin = rotary[1].data_ptr()
            layer.turn_stride = D if rotary.shape[1] > 1 else 0

        allowed = None
        if mask is not None and type(mask) is not Causal:
            matrix = mask.materialise(1, position + 1, x.device)  # (#B, 1, 1, S)
            allowed = matrix[:, 0, 0].expand(B, -1).contiguous()
            layer.allowed = address(allowed)

        kernels = native_library.library()
        assert kernels is not None
        y = kernels.decode_block(self.arguments, layer, x.reshape(B, -1).contiguous())
        state.lengths[self.layer] = position + 1

        return y.view(x.shape)


def product_of(layer: Linear) -> Product:
    """The arguments of a linear layer's product."""
    weight: Any = layer.weight
    if isinstance(weight, PanelMatrix):
        return weight.product(layer.bias)

    N, E = weight.shape
    return Product(N, E, FLOAT32, weight=weight.data_ptr(), bias=address(layer.bias))


def add_norm(product: Product, norm: Any) -> None:
    """Let a product begin with a norm of its input."""
    assert isinstance(norm, LayerNorm | RMSNorm)
    product.norm = LAYER_NORM if isinstance(norm, LayerNorm) else RMS_NORM
    product.epsilon = norm.epsilon
    product.gain = norm.gain.data_ptr()
    if isinstance(norm, LayerNorm):
        product.shift = norm.bias.data_ptr()
