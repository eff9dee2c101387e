"""Run only the upper layers: what lies below a changed layer is not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.models.model import Model, backbone_of
from qkv.models.sites import stack_with
from qkv.nn.hooks import CapturedValues, add_hook

TOKENS = 2**11
"""Tokens of one forward pass on a CPU."""
TOKENS_ON_GPU = 2**15


def copies_per_pass(tokens: int, device: torch.device) -> int:
    """How many copies of a text of `tokens` tokens run in one forward pass."""
    limit = TOKENS
    if device.type == "cuda":
        limit = TOKENS_ON_GPU

    return max(1, limit // tokens)


def chunks_of(count: int, size: int) -> Iterator[range]:
    """The numbers below `count` in ranges of at most `size`."""
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def repeated(tensor: Tensor, times: int) -> Tensor:
    """Repeat the whole batch: (B, ...) to (times * B, ...)."""
    return tensor.repeat(times, *[1] * (tensor.dim() - 1))


@contextmanager
def starting_at(
    model: Model, kind: str, layer: int, captured: CapturedValues, copies: int = 1
) -> Iterator[None]:
    """While the context is open, forward passes skip all blocks below `layer`.

    Args:
        model: The model.
        kind: The kind of attention, which names the stack (see `stack_with`).
        layer: The first block that runs.
        captured: The values at "before" of each block of the backbone for the same batch.
        copies: The forward passes read this number of copies of that batch.
    """
    changed = stack_with(model, kind)
    with ExitStack() as stacks:
        for name, stack in backbone_of(model).stacks.items():
            # Of an encoder below a changed decoder only the last block runs.
            first = layer if stack is changed else len(stack.blocks) - 1
            before = repeated(captured[f"{name}.blocks.{first}.before"], copies)  # (copies*B, T, E)
            stacks.enter_context(upper_blocks(stack, first, before))
            if stack is changed:
                break

        yield


@contextmanager
def upper_blocks(stack: Any, layer: int, x: Float[Tensor, "B T E"]) -> Iterator[None]:
    """Reduce a stack to its blocks from `layer` on; the first reads x instead of its input."""
    all_blocks = stack.blocks
    stack.blocks = all_blocks[layer:]

    try:
        with add_hook(all_blocks[layer], "before", lambda value, name: x):
            yield
    finally:
        stack.blocks = all_blocks
