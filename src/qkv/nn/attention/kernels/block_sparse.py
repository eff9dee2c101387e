"""A substitute for the eager equation that computes only the pairs a sparse mask may allow, on any
device.

A mask with a `reach` (window, block, documents): each run of queries meets one run of keys. The
Sparse Transformer's patterns are in regrouped.py. Time grows with the number of pairs, forward and
backward, memory with the length.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.kernels import sdpa, sparse_transformer
from qkv.nn.attention.mask import Document, Fixed, Mask, Strided

SIZE = 128  # queries that share one run of keys


def supports(mask: Mask, T: int, S: int, device: torch.device) -> bool:
    """Worth it when less than half of what a causal mask allows is left."""
    pattern = sparse_pattern(mask)
    if pattern is not None:
        return T == S and 4 * pattern.stride < S

    looks_at_ids = any(isinstance(part, Document) for part in mask.members)
    if looks_at_ids and (device.type != "cpu" or torch.compiler.is_compiling()):
        return False  # to know its reach, the host would have to wait for the device

    runs = runs_of_keys(mask, T, S)

    return runs is not None and sum((high - low) * min(SIZE, T) for low, high in runs) < T * S / 4


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T X"]:
    T, S = query.shape[-2], key.shape[-2]
    if T == 0 or S == 0:  # nothing to cut into blocks
        return sdpa.attend(query, key, value, mask, bias, scale, dropout)

    pattern = None if mask is None else sparse_pattern(mask)
    if mask is not None and pattern is not None and T == S:
        return sparse_transformer.attend(query, key, value, mask, pattern, bias, scale, dropout)

    runs = None if mask is None else runs_of_keys(mask, T, S)
    if mask is not None and runs is not None:
        return attend_runs(query, key, value, mask, bias, scale, dropout, runs)

    raise ValueError(
        "kernel blocked needs a sparse mask: Window, Block or Document, or Strided or Fixed with T = S"
    )


def sparse_pattern(mask: Mask) -> Strided | Fixed | None:
    return next((part for part in mask.members if isinstance(part, Strided | Fixed)), None)


def runs_of_keys(mask: Mask, T: int, S: int) -> list[tuple[int, int]] | None:
    """For each block of queries the keys [low, high) it can see, in whole blocks; None when the
    mask does not know.
    """
    runs = []
    for t in range(0, T, SIZE):
        reach = mask.reach(S - T + t, S - T + min(t + SIZE, T) - 1)
        if reach is None:
            return None

        low = max(0, reach[0]) // SIZE * SIZE
        runs.append((low, max(low, min(S, -(-reach[1] // SIZE) * SIZE))))

    return runs


def attend_runs(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
    runs: list[tuple[int, int]],
) -> Float[Tensor, "B H T X"]:
    T, S = query.shape[-2], key.shape[-2]
    # Split once and join neighbours: the backward of a slice would fill a whole (S, D) tensor for
    # every run.
    queries, keys, values = (
        query.split(SIZE, dim=2),
        key.split(SIZE, dim=2),
        value.split(SIZE, dim=2),
    )
    position, place = (
        torch.arange(S, device=query.device),
        torch.arange(S - T, S, device=query.device),
    )
    outputs = []

    for block, (q, (low, high)) in enumerate(zip(queries, runs, strict=True)):
        pieces = slice(low // SIZE, -(-high // SIZE))
        if not keys[pieces]:  # nothing to see
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue

        row = place[block * SIZE :][: q.shape[2]].unsqueeze(1)  # (t, 1)
        column = position[low:high]  # (s,)
        allowed = mask.at(row, column)  # (B, H, t, s)
        added = None if bias is None else bias.tile(row, column, q)
        k, v = torch.cat(keys[pieces], dim=2), torch.cat(values[pieces], dim=2)  # (B, K, s, D)
        with keeping_pieces({k: keys[pieces], v: values[pieces]}):
            outputs.append(sdpa.with_matrices(q, k, v, allowed, added, scale, dropout))

    return torch.cat(outputs, dim=2)


def keeping_pieces(joined: dict[Tensor, tuple[Tensor, ...]]) -> AbstractContextManager[object]:
    """For the way back keep the pieces and join them again: else every block that sees a key would
    keep a copy.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()

    pieces_of = {
        (x.data_ptr(), x.shape): tuple(piece.detach() for piece in pieces)
        for x, pieces in joined.items()
    }
    versions = {key: [piece._version for piece in pieces] for key, pieces in pieces_of.items()}

    def pack(x: Tensor) -> Any:
        return (x.data_ptr(), x.shape) if (x.data_ptr(), x.shape) in pieces_of else x

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        if [piece._version for piece in pieces_of[kept]] != versions[kept]:
            raise RuntimeError(
                "a key or value needed for the gradient was changed in place after attention used it"
            )

        return torch.cat(pieces_of[kept], dim=2)

    return saved_tensors_hooks(pack, unpack)
