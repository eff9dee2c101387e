"""Gradient checkpointing: each block keeps only its input, and computes the rest again on the way back."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from qkv.nn.block import Block


class Plain(nn.Module):
    """A block's own forward pass, whatever its forward has become."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.own = block.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.own(*args, **kwargs)


def recompute_blocks(model: nn.Module) -> None:
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError("recompute: this model has no blocks to recompute; leave it out")
    for block in blocks:
        recompute(block)


def recompute(block: Block) -> None:
    plain = Plain(block)

    def forward(*args: Any, **kwargs: Any) -> Any:
        # The weights of this moment, which in half precision are short copies that are gone on the way back.
        weights = {f"block.{name}": weight for name, weight in block.named_parameters()}
        return checkpoint(functional_call, plain, weights, args, kwargs, use_reentrant=False)

    block.forward = forward  # type: ignore[method-assign]
