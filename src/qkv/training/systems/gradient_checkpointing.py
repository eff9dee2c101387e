"""Gradient checkpointing: activations that are not stored are recomputed in the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from qkv.nn.block import Block
from qkv.nn.cache import NO_STATE, Cache
from qkv.nn.feed_forward import FeedForward
from qkv.nn.unchanged import same_computation


class OriginalForward(nn.Module):
    """A block with the forward method that it had before it was replaced."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.original = block.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


def recompute_activations(model: nn.Module) -> None:
    """Feed-forward layers store the activation's input, not its output: a quarter of all memory."""
    for module in model.modules():
        if isinstance(module, FeedForward):
            activate = partial(checkpoint, module.activate, use_reentrant=False)
            module.activate = same_computation(activate)  # type: ignore[method-assign]


def recompute_blocks(model: nn.Module) -> None:
    """Every block stores only its input."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError("recompute: this model has no blocks to recompute; leave it out")

    for block in blocks:
        recompute_block(block)


def recompute_block(block: Block) -> None:
    original = OriginalForward(block)

    def forward(*args: Any, state: Cache = NO_STATE, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, state=state, **kwargs)

        # The weights of this moment: in mixed precision they are casts, gone in the backward pass.
        weights: dict[str, Tensor] = {}
        for name, weight in block.named_parameters():
            weights[f"block.{name}"] = weight

        before = state.snapshot()

        def run(*args: Any) -> Any:
            nonlocal state
            # The first call extends the real memory, the recomputation a copy of what it was.
            memory = state
            state = before.snapshot()
            return functional_call(original, weights, args, {**kwargs, "state": memory})

        return checkpoint(run, *args, use_reentrant=False)

    block.forward = same_computation(forward)  # type: ignore[method-assign]
