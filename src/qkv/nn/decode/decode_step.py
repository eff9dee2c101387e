"""A decode step as a chain of kernels: what replaces the parts of a model in a CUDA graph.

While `installed` is open, the embedding, the blocks and the last norm of a model are computed by
kernels that start early (dependent_launch), with the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.block import Block, Stack
from qkv.nn.decode import decode_block
from qkv.nn.decode.dependent_launch import chained, launch_options
from qkv.nn.embedding import Embedding
from qkv.nn.linear import gemv
from qkv.nn.norm import LayerNorm, RMSNorm
from qkv.nn.position import Learned, Rotary
from qkv.nn.unchanged import same_computation, unchanged

try:
    import triton
    import triton.language as tl

    from qkv.nn.decode.dependent_launch import start_next
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

INSTALLING = threading.RLock()  # one thread at a time changes a model


@contextmanager
def installed(
    model: nn.Module, angles: Tensor | None = None, tickets: Tensor | None = None
) -> Iterator[None]:
    """Let the plain parts of a model compute decode steps this way while the context is open.

    Args:
        model: A model whose step a CUDA graph captures.
        angles: What `rotary_table` returned.
        tickets: Zeros of this graph alone, as for `dependent_launch.chained`.
    """
    if triton is None:
        yield
        return

    INSTALLING.acquire()
    earlier: list[tuple[nn.Module, str, Any]] = []
    for module, name, method in replacements(model, angles):
        earlier.append((module, name, vars(module).get(name)))
        setattr(module, name, same_computation(method))

    try:
        with chained(tickets):
            yield
    finally:
        for module, name, method in earlier:
            delattr(module, name)
            if method is not None:
                setattr(module, name, method)

        INSTALLING.release()


def replacements(
    model: nn.Module, angles: Tensor | None
) -> list[tuple[nn.Module, str, Callable[..., Any]]]:
    """The methods to replace: of which module, its name, and the new one."""
    found: list[tuple[nn.Module, str, Callable[..., Any]]] = []
    for module in model.modules():
        if type(module) is Embedding and is_plain_embedding(module):
            found.append((module, "forward", partial(embed, module)))
        elif type(module) is Block and decode_block.is_plain(module):
            found.append((module, "forward", partial(decode_block.decode_block, module)))
        elif type(module) is Stack:
            last = module.norm
            if last is not None and unchanged(last, LayerNorm, RMSNorm):
                found.append((last, "forward", partial(norm, last)))
            if angles is not None:
                found.append((module.position, "angles", partial(look_up_angles, angles)))

    return found


# Embedding


def is_plain_embedding(embedding: Embedding) -> bool:
    """True for a sum of token and learned position, or for the token alone."""
    if not unchanged(embedding, Embedding) or not unchanged(embedding.token, nn.Embedding):
        return False
    if embedding.segment is not None or embedding.norm is not None or embedding.join != "sum":
        return False

    return embedding.position is None or type(embedding.position) is Learned


def embed(
    embedding: Embedding,
    ids: Int[Tensor, "B T"],
    positions: Int[Tensor, "#B T"],
    segments: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T E"]:
    """`Embedding.forward` in one kernel, for tokens that each have a position."""
    each = ids.shape == positions.shape and ids.is_cuda
    if triton is None or not each or embedding.training or embedding.hooks.callbacks:
        return Embedding.forward(embedding, ids, positions, segments)

    weight = embedding.token.weight
    E = weight.shape[1]
    table = None
    if embedding.position is not None:
        table = embedding.position.weight

    output = weight.new_empty(*ids.shape, E)
    embed_row[(ids.numel(),)](
        ids.contiguous(), positions.contiguous(), weight, table, output, E, embedding.scale,
        LANES=triton.next_power_of_2(E), SCALED=embedding.scale != 1.0,
        LEARNED=table is not None, PDL=launch_options()["PDL"], num_warps=4,
    )  # fmt: skip

    return output


# The last norm and rotary positions


def norm(layer: LayerNorm | RMSNorm, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
    """The norm of a few rows in half precision; otherwise the layer's own."""
    if not gemv.half_precision(x, layer.gain):
        plain: Callable[..., Tensor] = type(layer).forward
        return plain(layer, x)

    return gemv.norm_rows(x.contiguous(), layer)


def rotary_table(model: nn.Module, positions: Int[Tensor, "N"]) -> Float[Tensor, "2 N D"] | None:
    """Cosines and sines at these positions, which a step then looks up; None without rotary."""
    for module in model.modules():
        if type(module) is Stack and unchanged(module.position, Rotary):
            table = module.position.angles(positions.unsqueeze(0))  # (2, 1, 1, N, D)
            return None if table is None else table[:, 0, 0].contiguous()

    return None


def look_up_angles(
    table: Float[Tensor, "2 N D"], positions: Int[Tensor, "B T"]
) -> Float[Tensor, "2 B 1 T D"]:
    """`Rotary.angles` for positions of the table."""
    return table[:, positions].unsqueeze(2)


if triton is not None:

    @triton.jit
    def embed_row(  # type: ignore[no-untyped-def]
        ids, positions, tokens, table, output, E, scale,
        LANES: tl.constexpr, SCALED: tl.constexpr, LEARNED: tl.constexpr,
        PDL: tl.constexpr,
    ):  # fmt: skip
        """The first kernel of a step: it starts when all kernels of the last step have ended."""
        dtype: tl.constexpr = output.dtype.element_ty
        start_next(PDL)
        row = tl.program_id(0).to(tl.int64)
        e = tl.arange(0, LANES)
        x = tl.load(tokens + tl.load(ids + row) * E + e, mask=e < E, other=0.0)
        if SCALED:
            x = (x.to(tl.float32) * scale).to(dtype)
        if LEARNED:
            position = tl.load(table + tl.load(positions + row) * E + e, mask=e < E, other=0.0)
            x = (x.to(tl.float32) + position.to(tl.float32)).to(dtype)

        tl.store(output + row * E + e, x, mask=e < E)
