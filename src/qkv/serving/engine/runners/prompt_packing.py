"""The new tokens of many prompts as arrays, one sequence after the other in one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from qkv.nn.cache import PagedCache
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.sampler import to_device
from qkv.serving.engine.sequence import ServingSequence
from qkv.serving.engine.sequence_table import SequenceTable

Numbers = Int64[np.ndarray, "N"]
"""One number per sequence, or per token."""
Chunks = Sequence[tuple[ServingSequence, int]]
"""Sequences with their number of tokens to read."""


class PositionRange(NamedTuple):
    """Some positions of several sequences, one sequence after the other."""

    slots: Numbers
    """The slot of each position's sequence."""
    positions: Numbers
    mapping: Numbers
    """Where in the cache each position's key and value go."""


class PackedTokens(NamedTuple):
    """The tokens that several sequences read in a step."""

    slots: Numbers
    """The slot of each sequence."""
    counts: Numbers
    """Its new tokens."""
    computed: Numbers
    """Its positions before them."""
    completed: Int64[np.ndarray, "M"]
    """Which of the sequences are then read to their end."""
    ids: Numbers
    """The new tokens of all sequences."""
    new: PositionRange

    @property
    def ends(self) -> Numbers:
        """The row after each sequence's last token."""
        return self.counts.cumsum()


def pack_prompts(prefill: Chunks, table: SequenceTable) -> PackedTokens:
    """The arrays of the sequences of a step that read prompts; all have slots of the table."""
    slots = np.array([sequence.slot for sequence, _ in prefill], dtype=np.int64)
    counts = np.array([count for _, count in prefill], dtype=np.int64)
    prompts = np.array([sequence.prompt_length for sequence, _ in prefill], dtype=np.int64)
    computed = table.computed[slots]
    completed = np.flatnonzero(computed + counts == prompts + table.generated[slots])

    ids: list[int] = []
    for (sequence, count), begin in zip(prefill, computed.tolist(), strict=True):
        ids += sequence.token_ids[begin : begin + count]

    new = positions_of(prefill, slots, computed, counts)
    return PackedTokens(slots, counts, computed, completed, np.array(ids, dtype=np.int64), new)


def write_pasts(pages: PagedCache, prefill: Chunks) -> None:
    """Enter the positions before the new tokens into the block table: a cached prefix's, too."""
    continued = [chunk for chunk in prefill if chunk[0].computed]
    if not continued:
        return

    slots = np.array([sequence.slot for sequence, _ in continued], dtype=np.int64)
    counts = np.array([sequence.computed for sequence, _ in continued], dtype=np.int64)
    past = positions_of(continued, slots, np.zeros_like(counts), counts)
    table_rows, positions, mapping = to_device(np.stack(past), pages.block_table.device)
    pages.block_table[table_rows, positions] = mapping.int()


def positions_of(prefill: Chunks, slots: Numbers, first: Numbers, counts: Numbers) -> PositionRange:
    """`counts` positions of each sequence, from its position `first` on."""
    tables = [sequence.block_table for sequence, _ in prefill]
    blocks = np.fromiter(chain.from_iterable(tables), dtype=np.int64)
    first_blocks = starts_of(np.fromiter(map(len, tables), dtype=np.int64, count=len(tables)))

    positions = np.arange(counts.sum()) + np.repeat(first - starts_of(counts), counts)
    block, offset = np.divmod(positions, BLOCK_SIZE)
    block += np.repeat(first_blocks, counts)
    mapping = blocks[block] * BLOCK_SIZE + offset

    return PositionRange(np.repeat(slots, counts), positions, mapping)


def starts_of(counts: Numbers) -> Numbers:
    """Where each of several parts begins, if they follow each other."""
    return counts.cumsum() - counts


def tiles_of(packed: PackedTokens, padding: int, size: int) -> Int64[np.ndarray, "3 M"]:
    """Tiles of at most `size` tokens, as `PackedPrompts` has them; then those of the padding."""
    counts = np.append(packed.counts, padding)
    numbers = -(-counts // size)
    part = np.repeat(np.arange(len(counts)), numbers)
    done = (np.arange(len(part)) - starts_of(numbers)[part]) * size  # tokens in earlier tiles
    tokens = np.minimum(counts[part] - done, size)
    keys = np.append(packed.computed, 0)[part] + done + tokens
    keys[part == len(packed.counts)] = 0

    return np.stack([starts_of(counts)[part] + done, tokens, keys])
