"""Run only the upper layers: what lies below a changed layer is not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.models import RNN, Transformer
from qkv.models.model import Model, backbone_of
from qkv.nn.block import Stack
from qkv.nn.hooks import CapturedValues, add_hook

TOKENS = 2**11
"""Tokens of one forward pass on a CPU."""
TOKENS_ON_GPU = 2**15


def stack_with(model: Model, kind: str) -> Stack:
    """The stack of blocks with this kind of attention: self, encoder, decoder or cross."""
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        raise ValueError("model: an RNN has one attention and no layers of heads; expected another")
    if not isinstance(backbone, Transformer):
        return backbone.stack
    if kind == "encoder":
        return backbone.encoder

    return backbone.decoder


def copies_per_pass(tokens: int, device: torch.device) -> int:
    """How many copies of a text of `tokens` tokens run in one forward pass."""
    limit = TOKENS
    if device.type == "cuda":
        limit = TOKENS_ON_GPU

    return max(1, limit // tokens)


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
    backbone = backbone_of(model)
    first_block = {"stack": layer}
    if isinstance(backbone, Transformer):
        if kind == "encoder":
            first_block = {"encoder": layer}
        else:
            # The decoder is changed: of the encoder only the last block runs.
            first_block = {"encoder": len(backbone.encoder.blocks) - 1, "decoder": layer}

    with ExitStack() as stacks:
        for name, first in first_block.items():
            before = repeated(captured[f"{name}.blocks.{first}.before"], copies)  # (copies*B, T, E)
            stacks.enter_context(upper_blocks(getattr(backbone, name), first, before))

        yield


@contextmanager
def upper_blocks(stack: Stack, layer: int, x: Float[Tensor, "B T E"]) -> Iterator[None]:
    """Reduce a stack to its blocks from `layer` on; the first reads x instead of its input."""
    all_blocks = stack.blocks
    stack.blocks = all_blocks[layer:]

    try:
        with add_hook(all_blocks[layer], "before", lambda value, name: x):
            yield
    finally:
        stack.blocks = all_blocks
