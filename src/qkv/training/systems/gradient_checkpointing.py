"""Gradient checkpointing: what is not kept for the way back is computed again there."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from qkv.nn.block import Block
from qkv.nn.cache import SegmentMemory
from qkv.nn.feed_forward import FeedForward
from qkv.nn.unchanged import same_computation


class Plain(nn.Module):
    """A block's own forward pass, whatever its forward has become."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.own = block.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.own(*args, **kwargs)


def recompute_activations(model: nn.Module) -> None:
    """A feed-forward layer keeps what goes into its activation, not what comes out: a quarter of
    all that is kept.
    """
    for module in model.modules():
        if isinstance(module, FeedForward):
            again = partial(checkpoint, module.activate, use_reentrant=False)
            module.activate = same_computation(again)  # type: ignore[method-assign]


def recompute_blocks(model: nn.Module) -> None:
    """Each block keeps only its input."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError("recompute: this model has no blocks to recompute; leave it out")

    for block in blocks:
        recompute(block)


def recompute(block: Block) -> None:
    plain = Plain(block)

    def forward(*args: Any, state: Any = None, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, state=state, **kwargs)

        # The weights of this moment, which in half precision are short copies that are gone on the
        # way back.
        weights: dict[str, Tensor] = {
            f"block.{name}": weight for name, weight in block.named_parameters()
        }
        if state is None:
            return checkpoint(functional_call, plain, weights, args, kwargs, use_reentrant=False)

        before = remembered(state)

        def run(*args: Any) -> Any:
            nonlocal state
            now, state = (
                state,
                remembered(before),
            )  # what the block adds to a memory it adds only once
            return functional_call(plain, weights, args, {**kwargs, "state": now})

        return checkpoint(run, *args, use_reentrant=False)

    block.forward = same_computation(forward)  # type: ignore[method-assign]


def remembered(state: SegmentMemory | None) -> SegmentMemory | None:
    """A copy of what it is now."""
    if state is None:
        return None

    twin = SegmentMemory(state.size, state.depth)
    twin.length, twin.lengths, twin.layers = state.length, dict(state.lengths), dict(state.layers)

    return twin
