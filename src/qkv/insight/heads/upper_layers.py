"""The upper part of a stack alone: what lies below a layer that is changed need not be computed
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.models import RNN, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.nn.block import Stack
from qkv.nn.hooks import CapturedValues, add_hook

TOKENS, TOKENS_ON_GPU = 2**11, 2**15  # of one pass


def stack_with(model: Model, kind: str) -> Stack:
    """The stack of blocks that has this kind of attention: self, or of a translator encoder,
    decoder, cross.
    """
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        raise ValueError("model: an RNN has one attention and no layers of heads; expected another")
    if isinstance(backbone, Transformer):
        return backbone.encoder if kind == "encoder" else backbone.decoder

    return backbone.stack


def at_once(tokens: int, device: torch.device) -> int:
    """How many copies of so many tokens are read in one pass."""
    return max(1, (TOKENS_ON_GPU if device.type == "cuda" else TOKENS) // tokens)


def repeated(tensor: Tensor, times: int) -> Tensor:
    """All rows, and all of them again: (B, ...) to (times * B, ...)."""
    return tensor.repeat(times, *(1 for _ in tensor.shape[1:]))


@contextmanager
def starting_at(
    model: Model, kind: str, layer: int, seen: CapturedValues, copies: int = 1
) -> Iterator[None]:
    """While the context is open, forward passes leave out all blocks below this one of the stack
    that has `kind`.

    `seen` has what came "before" each block of the body when it read the same batch; now copies of
    that are read.
    """
    backbone = backbone_of(model)
    first = {"stack": layer}
    if isinstance(backbone, Transformer):
        last = len(backbone.encoder.blocks) - 1  # alone, where the decoder is changed
        first = {"encoder": layer} if kind == "encoder" else {"encoder": last, "decoder": layer}

    with ExitStack() as changed:
        for name, begin in first.items():
            before = repeated(seen[f"{name}.blocks.{begin}.before"], copies)  # (copies * B, T, E)
            changed.enter_context(upper(getattr(backbone, name), begin, before))

        yield


@contextmanager
def upper(stack: Stack, layer: int, x: Float[Tensor, "B T E"]) -> Iterator[None]:
    """The blocks from this one on, which reads x whatever the stack is given."""
    whole = stack.blocks
    stack.blocks = whole[layer:]

    try:
        with add_hook(whole[layer], "before", lambda value, name: x):
            yield
    finally:
        stack.blocks = whole
