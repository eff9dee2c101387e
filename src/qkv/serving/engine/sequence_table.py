"""The running sequences as arrays, one row per slot, so that a step need not visit each object.

What a decode step changes of every sequence (its length, its tokens, its uniform number) is in
arrays; a sequence's own attributes read them while it has a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from qkv.generation.kernels.sampling_kernel import RowFilters
from qkv.generation.sampling_params import BROKEN
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.generation_request import Outlet

ENDS = 4
"""End ids per row; a sequence with more is handled token by token."""
NO_END = -2
"""Fills the columns of missing end ids: no token, and not BROKEN."""
UNIFORMS = 64
"""Uniform numbers that are drawn for a row at a time."""
CATCH_UP_EVERY = 32
"""Tokens after which a row's sequence catches up on its text and its prefix; rows take turns."""
BUFFERED = 2 * CATCH_UP_EVERY
"""Tokens per row before they are added to the sequence's list, at the latest."""

owners = count(1)
Slots = Int64[np.ndarray, "N"]


class RowSettings(NamedTuple):
    """What a sequence's row needs to know of its request."""

    max_new_tokens: int
    end_ids: tuple[int, ...]
    filters: RowFilters
    uniforms: Callable[[int, int], list[float]]
    """The uniform numbers of the tokens from one position to before another."""
    samples_logits: bool
    """Its token depends on the logits alone."""
    collects: bool
    """Its tokens are only collected until it ends or streams: no stop strings, no logprobs."""
    streams: bool
    ablated: bool
    """Some of its heads are switched off."""
    outlet: Outlet | None = None
    """Receives each token when the host has read it; None if chunks are sent."""
    number: int = 0
    """The outlet's number of this sequence."""


class Received(NamedTuple):
    """What becomes of the tokens of a step; rows are indices into the step's sequences."""

    collected: int
    """Tokens that were buffered."""
    streaming: Slots
    """Rows of these whose sequence streams chunks."""
    relayed: Slots
    """Rows of these whose token goes to an outlet."""
    due: Slots
    """Rows of these whose sequence catches up on what would otherwise be left for its end."""
    others: Slots
    """Rows whose token is handled by itself."""


class SequenceTable:
    """Rows of the running sequences, by slot."""

    def __init__(self, slots: int) -> None:
        self.version = 0
        """Changes when a sequence comes, goes or changes its status."""
        self.owner = np.zeros(slots, dtype=np.int64)
        """A number for each stay of a sequence in a slot; 0 for a free slot."""
        self.computed = np.zeros(slots, dtype=np.int64)
        self.generated = np.zeros(slots, dtype=np.int64)
        self.chunk_start = np.zeros(slots, dtype=np.int64)
        self.received = np.zeros(slots, dtype=np.int64)
        """Generated tokens that the host has read."""
        self.max_new_tokens = np.zeros(slots, dtype=np.int64)
        self.blocks = np.zeros(slots, dtype=np.int64)
        """Blocks that each sequence holds."""
        self.last_block = np.zeros(slots, dtype=np.int64)
        self.samples_logits = np.zeros(slots, dtype=bool)
        self.collects = np.zeros(slots, dtype=bool)
        self.streams = np.zeros(slots, dtype=bool)
        self.relays = np.zeros(slots, dtype=bool)
        """Whether a row has an outlet."""
        self.outlets = np.full(slots, None, dtype=object)
        self.numbers = np.zeros(slots, dtype=np.int64)
        self.ablated = np.zeros(slots, dtype=bool)
        self.ends = np.full((slots, ENDS), NO_END, dtype=np.int64)
        self.filters = np.zeros((len(RowFilters._fields), slots))
        self.sources: dict[int, Callable[[int, int], list[float]]] = {}
        self.uniforms = np.ones((slots, UNIFORMS))
        self.drawn = np.full(slots, -1)
        """Which UNIFORMS tokens the uniform numbers of a slot are for."""
        self.tokens = np.zeros((slots, BUFFERED), dtype=np.int64)
        """Tokens that the host has read, but not added to the sequence's list."""
        self.buffered = np.zeros(slots, dtype=np.int64)

    def join(
        self,
        slot: int,
        computed: int,
        generated: int,
        settings: RowSettings,
        *,
        chunk_start: int = 0,
    ) -> None:
        """Give a slot to a sequence."""
        self.version += 1
        self.owner[slot] = next(owners)
        self.computed[slot] = computed
        self.generated[slot] = generated
        self.chunk_start[slot] = chunk_start
        self.received[slot] = generated
        self.buffered[slot] = 0
        self.max_new_tokens[slot] = settings.max_new_tokens
        self.samples_logits[slot] = settings.samples_logits
        self.collects[slot] = settings.collects and len(settings.end_ids) <= ENDS
        self.streams[slot] = settings.streams
        self.relays[slot] = settings.outlet is not None
        self.outlets[slot] = settings.outlet
        self.numbers[slot] = settings.number
        self.ablated[slot] = settings.ablated
        self.ends[slot] = NO_END
        end_ids = settings.end_ids[:ENDS]
        self.ends[slot, : len(end_ids)] = end_ids
        self.filters[:, slot] = settings.filters
        self.sources[slot] = settings.uniforms
        if settings.filters.temperature:
            self.draw(slot)

    def leave(self, slot: int) -> None:
        """Free a slot."""
        self.version += 1
        self.owner[slot] = 0
        self.buffered[slot] = 0
        self.outlets[slot] = None
        del self.sources[slot]

    def hold_blocks(self, slot: int, block_table: list[int]) -> None:
        """Note the blocks of a sequence: their number and the last one."""
        self.blocks[slot] = len(block_table)
        if block_table:
            self.last_block[slot] = block_table[-1]

    def add_blocks(self, slots: Slots, blocks: list[int]) -> None:
        """Note another block of each of these rows."""
        self.blocks[slots] += 1
        self.last_block[slots] = blocks

    # A decode step

    def may_decode(self, slots: Slots) -> Bool[np.ndarray, "N"]:
        """Whether a row has tokens left to sample, even if the host has not read the last one."""
        return self.generated[slots] < self.max_new_tokens[slots]

    def without_room(self, slots: Slots) -> Int64[np.ndarray, "M"]:
        """Indices of the rows whose blocks have no room for another position."""
        return np.flatnonzero(self.blocks[slots] * BLOCK_SIZE <= self.computed[slots])

    def slot_mapping(self, slots: Slots) -> Slots:
        """Where in the cache the key and value of each row's next position go."""
        return self.last_block[slots] * BLOCK_SIZE + self.computed[slots] % BLOCK_SIZE

    def advance(self, slots: Slots) -> None:
        """Count one more token of each row as computed, and one as generated."""
        self.computed[slots] += 1
        self.generated[slots] += 1

    def next_uniforms(self, slots: Slots) -> np.ndarray:
        """The uniform number of each row's next token; any number for a greedy row."""
        generated = self.generated[slots]
        missing = self.drawn[slots] != generated // UNIFORMS
        if missing.any():
            for slot in slots[missing & (self.filters[0, slots] > 0)].tolist():
                self.draw(slot)

        return self.uniforms[slots, generated % UNIFORMS]

    def draw(self, slot: int) -> None:
        """Fill the row of uniform numbers from the next token's on."""
        first = int(self.generated[slot])
        begin = first % UNIFORMS
        self.drawn[slot] = first // UNIFORMS
        self.uniforms[slot, begin:] = self.sources[slot](first, first + UNIFORMS - begin)

    # Received tokens

    def receive(self, slots: Slots, owner: Slots, token_ids: Slots) -> Received:
        """Buffer the tokens of rows that go on and have nothing else to do.

        Rows whose sequence is gone are left out.
        """
        stays = self.owner[slots] == owner
        ended = (self.ends[slots] == token_ids[:, None]).any(1) | (token_ids == BROKEN)
        last = self.received[slots] + 1 >= self.max_new_tokens[slots]
        full = self.buffered[slots] >= BUFFERED
        collects = stays & self.collects[slots] & ~(ended | last | full)

        rows = slots[collects]
        self.tokens[rows, self.buffered[rows]] = token_ids[collects]
        self.buffered[rows] += 1
        self.received[rows] += 1

        # What an outlet has is in no chunk
        relayed = collects & self.relays[slots]
        self.chunk_start[slots[relayed]] += 1

        # Each slot has its own turn, so that every step has a few rows to catch up on
        due = (self.received[slots] + slots) % CATCH_UP_EVERY == 0

        return Received(
            collected=len(rows),
            streaming=np.flatnonzero(collects & self.streams[slots] & ~relayed),
            relayed=np.flatnonzero(relayed),
            due=np.flatnonzero(collects & due),
            others=np.flatnonzero(stays & ~collects),
        )

    def by_outlet(self, slots: Slots) -> Iterator[tuple[Outlet, Int64[np.ndarray, "M"]]]:
        """The outlets of these rows, each with the indices of its rows."""
        outlets = self.outlets[slots]
        for outlet in dict.fromkeys(outlets.tolist()):
            yield outlet, np.flatnonzero(outlets == outlet)

    def take_tokens(self, slot: int) -> list[int]:
        """The buffered tokens of a row, which is then empty."""
        count = self.buffered[slot]
        self.buffered[slot] = 0
        taken: list[int] = self.tokens[slot, :count].tolist()
        return taken
