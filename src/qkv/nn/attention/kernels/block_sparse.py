"""Block-sparse attention on any device: only the pairs that a sparse mask may allow are computed.

A mask with a `reach` (window, blocks, documents): each block of queries meets one range of keys.
The Sparse Transformer's patterns are in sparse_transformer.py. Time grows with the number of pairs,
forward and backward, and memory with the length.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.nn.attention.kernels import sdpa, sparse_transformer
from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Mask
from qkv.nn.attention.sparse_mask import Document, Fixed, Strided

SIZE = 128  # queries of a block, which share one range of keys


def supports(call: AttentionCall) -> bool:
    """True if less than half of the pairs of a causal mask are left."""
    mask = call.mask
    if mask is None:
        return False

    T = call.query.shape[2]
    S = call.key.shape[2]
    pattern = sparse_pattern(mask)
    if pattern is not None:
        return T == S and 4 * pattern.stride < S

    # The reach of documents is in a tensor: reading it from a GPU would be a device sync.
    unreadable = call.query.device.type != "cpu" or torch.compiler.is_compiling()
    if unreadable and any(isinstance(part, Document) for part in mask.members):
        return False

    ranges = key_ranges(mask, T, S)
    if ranges is None:
        return False

    return sum((high - low) * min(SIZE, T) for low, high in ranges) < T * S / 4


def run(call: AttentionCall) -> Float[Tensor, "B H T X"]:
    T = call.query.shape[-2]
    S = call.key.shape[-2]
    if T == 0 or S == 0:  # nothing to cut into blocks
        return sdpa.run(call)

    if call.mask is not None:
        pattern = sparse_pattern(call.mask)
        if pattern is not None and T == S:
            return sparse_transformer.attend(call, pattern)

        ranges = key_ranges(call.mask, T, S)
        if ranges is not None:
            return attend_ranges(call, ranges)

    raise ValueError(
        "kernel block_sparse: expected a sparse mask: Window, Blockwise or Document, "
        "or Strided or Fixed with T = S"
    )


def sparse_pattern(mask: Mask) -> Strided | Fixed | None:
    """The Sparse Transformer's pattern among the members of a mask."""
    for part in mask.members:
        if isinstance(part, Strided | Fixed):
            return part

    return None


def key_ranges(mask: Mask, T: int, S: int) -> list[tuple[int, int]] | None:
    """The keys [low, high) of each block of queries, in whole blocks; None without a reach."""
    ranges = []
    for t in range(0, T, SIZE):
        reach = mask.reach(S - T + t, S - T + min(t + SIZE, T) - 1)
        if reach is None:
            return None

        low = max(0, reach[0]) // SIZE * SIZE
        ranges.append((low, max(low, min(S, -(-reach[1] // SIZE) * SIZE))))

    return ranges


def attend_ranges(call: AttentionCall, ranges: list[tuple[int, int]]) -> Float[Tensor, "B H T X"]:
    """Attention of each block of queries to its range of keys."""
    query, key, value, mask, bias, scale, dropout = call
    assert mask is not None
    T = query.shape[-2]
    S = key.shape[-2]
    # Split once and join neighbours: the backward of a slice would fill a whole (S, D) tensor for
    # every range.
    queries = query.split(SIZE, dim=2)
    keys = key.split(SIZE, dim=2)
    values = value.split(SIZE, dim=2)
    key_positions = torch.arange(S, device=query.device)
    query_positions = torch.arange(S - T, S, device=query.device)
    outputs = []

    for block, (q, (low, high)) in enumerate(zip(queries, ranges, strict=True)):
        pieces = slice(low // SIZE, -(-high // SIZE))
        if not keys[pieces]:  # nothing is visible
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue

        row = query_positions[block * SIZE :][: q.shape[2]].unsqueeze(1)  # (t, 1)
        column = key_positions[low:high]  # (s,)
        allowed = mask.at(row, column)  # (B, H, t, s)
        added = None if bias is None else bias.tile(row, column, q)
        k = torch.cat(keys[pieces], dim=2)  # (B, K, s, D)
        v = torch.cat(values[pieces], dim=2)  # (B, K, s, X)

        with saving_pieces({k: keys[pieces], v: values[pieces]}):
            outputs.append(sdpa.attend_with_matrices(q, k, v, allowed, added, scale, dropout))

    return torch.cat(outputs, dim=2)


def saving_pieces(joined: dict[Tensor, tuple[Tensor, ...]]) -> AbstractContextManager[object]:
    """Save the pieces for the backward pass and join them again there.

    Otherwise every block of queries that sees a key would save a copy of it.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()

    pieces_of: dict[Any, tuple[Tensor, ...]] = {}
    versions: dict[Any, list[int]] = {}
    for x, pieces in joined.items():
        pieces_of[key_of(x)] = tuple(piece.detach() for piece in pieces)
        versions[key_of(x)] = [piece._version for piece in pieces]

    def pack(x: Tensor) -> Any:
        return key_of(x) if key_of(x) in pieces_of else x

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if [piece._version for piece in pieces_of[saved]] != versions[saved]:
            raise RuntimeError(
                "a key or value needed for the gradient was changed in place "
                "after attention used it"
            )

        return torch.cat(pieces_of[saved], dim=2)

    return saved_tensors_hooks(pack, unpack)


def key_of(x: Tensor) -> tuple[int, torch.Size]:
    """Which tensor it is, while it is alive."""
    return x.data_ptr(), x.shape


register_kernel("block_sparse", supports, run, rank=30)
