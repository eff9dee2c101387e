"""The upper part of a stack alone: what lies below a layer that is changed need not be computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jaxtyping import Float
from torch import Tensor

from qkv.models import RNN, Transformer
from qkv.models.build import Model, body_of
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Stack
from qkv.nn.tap import Recording, listen


def stack_with(model: Model, kind: str) -> Stack:
    """The stack of blocks that has this kind of attention: self, or of a translator encoder, decoder, cross."""
    body = body_of(model)
    if isinstance(body, RNN):
        raise ValueError("model: an RNN has one attention and no layers of heads; expected another")
    if isinstance(body, Transformer):
        return body.encoder if kind == "encoder" else body.decoder
    return body.stack


def attention_in(model: Model, kind: str, layer: int) -> MultiHeadAttention:
    block = stack_with(model, kind).blocks[layer]
    found = block.cross_attention if kind == "cross" else block.attention
    assert isinstance(found, MultiHeadAttention)
    return found


@contextmanager
def starting_at(model: Model, kind: str, layer: int, seen: Recording, rows: int = 1) -> Iterator[None]:
    """While the context is open, forward passes leave out all blocks below this one of the stack that has `kind`.

    `seen` has what came "before" each block of the body when it read the same batch; now `rows` copies of it are read.
    """
    body = body_of(model)
    with ExitStack() as changed:
        if isinstance(body, Transformer):
            if kind == "encoder":
                changed.enter_context(upper(body.encoder, layer, repeated(seen, "encoder", layer, rows)))
            else:  # of the encoder, the last block alone
                last = len(body.encoder.blocks) - 1
                changed.enter_context(upper(body.encoder, last, repeated(seen, "encoder", last, rows)))
                changed.enter_context(upper(body.decoder, layer, repeated(seen, "decoder", layer, rows)))
        else:
            changed.enter_context(upper(stack_with(model, kind), layer, repeated(seen, "stack", layer, rows)))
        yield


def repeated(seen: Recording, stack: str, layer: int, rows: int) -> Float[Tensor, "R T E"]:
    return seen[f"{stack}.blocks.{layer}.before"].repeat(rows, 1, 1)


@contextmanager
def upper(stack: Stack, layer: int, x: Float[Tensor, "B T E"]) -> Iterator[None]:
    """The blocks from this one on, which reads x whatever the stack is given."""
    whole = stack.blocks
    stack.blocks = whole[layer:]
    try:
        with listen(whole[layer], "before", lambda value, name: x):
            yield
    finally:
        stack.blocks = whole
