"""The first and the last kernel of a decode step over a paged cache (Triton, or eager).

The device knows the last token of each sequence; a step reads it, and stores the next one.
"""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None


def begin_step(
    positions: Int[Tensor, "R"],
    slot_mapping: Int[Tensor, "R"],
    slots: Int[Tensor, "R"],
    last_tokens: Int[Tensor, "N"],
    block_table: Int[Tensor, "N longest"],
) -> tuple[Int[Tensor, "R"], Int[Tensor, "R"]]:
    """Enter the new positions into the block table; returns the rows' tokens and lengths.

    Args:
        positions: The position of each row's token.
        slot_mapping: Where in the cache its key and value go.
        slots: The row of the block table, and of the last tokens.
        last_tokens: The last token of each slot.
        block_table: Is changed in place.
    """
    if triton is None or not positions.is_cuda:
        block_table[slots, positions] = slot_mapping.to(block_table.dtype)
        return last_tokens[slots], positions + 1

    ids = positions.new_empty(len(positions))
    lengths = positions.new_empty(len(positions))
    begin_row[(len(positions),)](
        positions, slot_mapping, slots, last_tokens, block_table, ids, lengths,
        block_table.stride(0), num_warps=1,
    )  # fmt: skip

    return ids, lengths


def finish_step(
    tokens: Int[Tensor, "R"], slots: Int[Tensor, "R"], last_tokens: Int[Tensor, "N"]
) -> None:
    """Store the tokens as the last ones; 0 for a row without a token."""
    if triton is None or not tokens.is_cuda:
        last_tokens[slots] = tokens.clamp(min=0)
        return

    finish_row[(len(tokens),)](tokens, slots, last_tokens, num_warps=1)


if triton is not None:

    @triton.jit
    def begin_row(  # type: ignore[no-untyped-def]
        positions, slot_mapping, slots, last_tokens, block_table, ids, lengths, table_row
    ):
        """One row."""
        row = tl.program_id(0)
        slot = tl.load(slots + row)
        position = tl.load(positions + row)
        mapping = tl.load(slot_mapping + row).to(block_table.dtype.element_ty)
        tl.store(block_table + slot * table_row + position, mapping)
        tl.store(ids + row, tl.load(last_tokens + slot))
        tl.store(lengths + row, position + 1)

    @triton.jit
    def finish_row(tokens, slots, last_tokens):  # type: ignore[no-untyped-def]
        """One row."""
        row = tl.program_id(0)
        token = tl.maximum(tl.load(tokens + row), 0)
        tl.store(last_tokens + tl.load(slots + row), token)
