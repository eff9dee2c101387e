"""A decoder block for one token of each row on a CPU, with the fewest calls of PyTorch.

Decoding multiplies few rows, so the calls between the products take as long as some of them:
modules, checks of arguments, views. `CpuBlock` reads the weights of a block once and calls only
what computes: one kernel in C where it was compiled (native_block). `CpuBlocks.installed` lets the
blocks of a model use it for steps with a `KeyValueCache`, and with pages where the kernel was
compiled, with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Mask
from qkv.nn.block import Block, Stack
from qkv.nn.cache.interface import NO_STATE, Cache
from qkv.nn.cache.kv_cache import KeyValueCache
from qkv.nn.decode import native_block
from qkv.nn.decode.decode_block import is_plain, matrices
from qkv.nn.decode.native_block import NativeBlock, run_together
from qkv.nn.feed_forward import activate
from qkv.nn.linear.linear import Linear, cpu_rows, linear, onednn_supports
from qkv.nn.native import native_library
from qkv.nn.native.native_library import plain_vector
from qkv.nn.norm import LayerNorm, RMSNorm
from qkv.nn.position import rotate
from qkv.nn.transforms import in_a_transform
from qkv.nn.unchanged import forward_hooks, same_computation

Layer = Callable[[Tensor], Tensor]


class CpuBlocks:
    """The blocks of a model that decode this way.

    Args:
        model: A model on a CPU; what changes its blocks later must make new `CpuBlocks`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.forwards: dict[Block, CpuBlock] = {}
        self.stacks: dict[Stack, CpuStack] = {}
        for module in model.modules():
            if type(module) is Block and "forward" not in vars(module) and supports(module):
                self.forwards[module] = same_computation(CpuBlock(module))

        for module in model.modules():
            if type(module) is Stack and "run_blocks" not in vars(module):
                blocks = [self.forwards[block] for block in module.blocks if block in self.forwards]
                native = [block.native for block in blocks if block.native is not None]
                if native and len(native) == len(module.blocks):
                    self.stacks[module] = same_computation(CpuStack(module, blocks))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the blocks compute decode steps this way while the context is open.

        Threads may share a model: a block gives the same numbers with and without.
        """
        for block, forward in self.forwards.items():
            vars(block)["forward"] = forward
        for stack, run_blocks in self.stacks.items():
            vars(stack)["run_blocks"] = run_blocks

        try:
            yield
        finally:
            for block in self.forwards:
                vars(block).pop("forward", None)
            for stack in self.stacks:
                vars(stack).pop("run_blocks", None)


def supports(block: Block) -> bool:
    """True for an unchanged block of self-attention in float32 on a CPU, without adapters."""
    if not is_plain(block) or block.cross_attention is not None or block.training:
        return False
    if block.attention.relative is not None:
        return False
    if any(layer.adapters is not None for layer in matrices(block)):
        return False

    gain = block.attention_residual.norm.gain
    return gain.is_cpu and gain.dtype == torch.float32


class CpuBlock:
    """One block: `Block.forward` of a decode step."""

    def __init__(self, block: Block) -> None:
        attention = block.attention
        self.block = block
        self.heads = attention.heads
        self.kv_heads = attention.kv_heads
        self.head_width = attention.head_width
        self.layer = attention.layer
        self.before = block.attention_residual.before
        self.activation = block.feed_forward.activation
        self.attention_norm = norm_of(block.attention_residual.norm)
        self.feed_forward_norm = norm_of(block.feed_forward_residual.norm)
        self.qkv, self.output, self.up, self.down = map(product_of, matrices(block))
        self.hooks = hooks_of(block)
        kernels = native_library.library()
        self.native = None if kernels is None else NativeBlock(kernels, block)

    def __call__(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None = None,
        state: Cache = NO_STATE,
    ) -> Float[Tensor, "B T E"]:
        if bias is None and self.can_run(x, mask, state):
            return self.run(x, mask, rotary, state)

        return Block.forward(self.block, x, mask=mask, bias=bias, rotary=rotary, state=state)

    def __reduce__(self) -> tuple[Callable[[Block], Callable[..., Tensor]], tuple[Block]]:
        """A copy of a block computes by itself, since this one knows the original's weights."""
        return plain_forward, (self.block,)

    def can_run(self, x: Tensor, mask: Mask | None, state: Cache) -> bool:
        """True for one token of each row, without autograd, autocast and hooks."""
        if not computes_only() or any(self.hooks):
            return False
        if type(state) is KeyValueCache:
            return x.shape[1] == 1
        if self.native is None or not native_block.decodes_only(state):
            return False

        return self.native.can_attend(mask, state)

    def run(
        self, x: Float[Tensor, "*n E"], mask: Mask | None, rotary: Tensor | None, state: Cache
    ) -> Float[Tensor, "*n E"]:
        """Norm, attention, residual, norm, feed-forward, residual."""
        if self.native is not None and self.native.can_run(x.shape[:-1].numel(), mask, state):
            return self.native.run(x, mask, rotary, state)

        if self.before:
            x = x + self.attend(self.attention_norm(x), mask, rotary, state)
            return x + self.feed_forward(self.feed_forward_norm(x))

        x = self.attention_norm(x + self.attend(x, mask, rotary, state))
        return self.feed_forward_norm(x + self.feed_forward(x))

    def attend(
        self, x: Float[Tensor, "*n E"], mask: Mask | None, rotary: Tensor | None, state: Cache
    ) -> Float[Tensor, "*n E"]:
        qkv = self.qkv(x)
        if self.native is not None and self.native.can_attend(mask, state):
            return self.output(self.native.attend(qkv, mask, rotary, state))

        B = len(x)
        H = self.heads
        K = self.kv_heads
        heads = qkv.view(B, H + 2 * K, 1, self.head_width)  # (B, H + 2K, 1, D)
        query, key, value = heads.split_with_sizes((H, K, K), 1)
        if rotary is not None:
            turned = rotate(heads[:, : H + K], rotary)
            query, key = turned.split_with_sizes((H, K), 1)

        keys, values = state.append(self.layer, key, value)  # (B, K, S, D)
        allowed = None
        if mask is not None and type(mask) is not Causal:
            allowed = mask.materialise(1, keys.shape[2], x.device)

        output = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=allowed, enable_gqa=H != K
        )  # (B, H, 1, D)

        return self.output(output.reshape(B, 1, H * self.head_width))

    def feed_forward(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return self.down(activate(self.up(x), self.activation))


class CpuStack:
    """The blocks of a stack in one call of the kernels: `Stack.run_blocks` of a decode step.

    The calls around a block take longer than in a loop, since its weights push the interpreter's
    data out of the caches.

    Args:
        stack: The stack.
        blocks: All its blocks.
    """

    def __init__(self, stack: Stack, blocks: Sequence[CpuBlock]) -> None:
        self.stack = stack
        self.blocks = blocks
        self.native = [block.native for block in blocks if block.native is not None]
        self.hooks = [hooks for block in blocks for hooks in block.hooks]

    def __call__(
        self,
        x: Float[Tensor, "B T E"],
        *,
        mask: Mask | None,
        bias: Bias | None,
        rotary: Float[Tensor, "2 #B 1 T D"] | None,
        state: Cache,
    ) -> Float[Tensor, "B T E"]:
        if bias is None and self.can_run(x, mask, state):
            return run_together(self.native, x, mask, rotary, state)

        return Stack.run_blocks(self.stack, x, mask=mask, bias=bias, rotary=rotary, state=state)

    def __reduce__(self) -> tuple[Callable[[Stack], Callable[..., Tensor]], tuple[Stack]]:
        """A copy of a stack computes by itself, since this one knows the original's weights."""
        return plain_run_blocks, (self.stack,)

    def can_run(self, x: Tensor, mask: Mask | None, state: Cache) -> bool:
        """True if every block can run in C, and all have the same position in the cache."""
        if not computes_only() or any(self.hooks):
            return False
        if type(state) is KeyValueCache and state.depth != len(self.native):
            return False
        if not self.blocks[0].can_run(x, mask, state):
            return False

        rows = x.shape[:-1].numel()
        return all(block.can_run(rows, mask, state) for block in self.native)


def computes_only() -> bool:
    """True without autograd, autocast and PyTorch's transforms."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False

    return not in_a_transform()


def hooks_of(block: Block) -> list[Mapping[Any, Any]]:
    """The dictionaries of all hooks in a block, qkv's and PyTorch's; empty ones until some come."""
    points = (block.hooks, block.attention.hooks, block.feed_forward.hooks)
    return [*(hooks.callbacks for hooks in points), *forward_hooks(*block.modules())]


def plain_run_blocks(stack: Stack) -> Callable[..., Tensor]:
    """The stack's own method."""
    return MethodType(Stack.run_blocks, stack)


def plain_forward(block: Block) -> Callable[..., Tensor]:
    """The block's own method."""
    return MethodType(Block.forward, block)


def norm_of(norm: Any) -> Layer:
    """A norm as a function of its weights."""
    gain = norm.gain
    shape = gain.shape
    epsilon = norm.epsilon
    if isinstance(norm, LayerNorm):
        shift = norm.bias
        return lambda x: torch.layer_norm(x, shape, gain, shift, epsilon)

    assert isinstance(norm, RMSNorm)
    return lambda x: torch.rms_norm(x, shape, gain, epsilon)


def product_of(layer: Linear) -> Layer:
    """A linear layer as a function of its weights."""
    weight: Any = layer.weight
    bias = layer.bias
    if not isinstance(weight, Tensor):
        return lambda x: weight.linear(x, bias)

    with torch.no_grad():
        if not onednn_supports(weight[:1], weight) or not plain_vector(bias, len(weight)):
            return lambda x: linear(x, weight, bias)

    return lambda x: cpu_rows(x, weight, bias)
