"""Scheduler: which sequences run in the next step, and their blocks of the KV cache.

Continuous batching, first come, first served. Every decoding sequence gets one token in a step;
the rest of the step's token budget goes to prompts, a long one in several chunks (chunked
prefill). When the cache is full, the sequence that arrived last is preempted: it gives its blocks
back and is recomputed later. So the cache never grows, and no sequence waits for a later one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress
from typing import NamedTuple

import numpy as np

from qkv.serving.engine.block_allocator import (
    BLOCK_SIZE,
    BlockAllocator,
    KnownPrefix,
    blocks_for,
)
from qkv.serving.engine.sequence import SequenceStatus, ServingSequence
from qkv.serving.engine.sequence_table import SequenceTable, Slots


@dataclass
class ScheduledStep:
    """The sequences of one step."""

    decode: list[ServingSequence] = field(default_factory=list)
    """Each reads the token that was sampled last."""
    prefill: list[tuple[ServingSequence, int]] = field(default_factory=list)
    """Sequences with their number of tokens to read; those without a past first."""
    known_slots: Slots | None = None
    """The slots of `decode`, if they are known as an array."""

    @cached_property
    def slots(self) -> Slots:
        """The slots of the sequences that decode."""
        if self.known_slots is not None:
            return self.known_slots

        return np.array([sequence.slot for sequence in self.decode], dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill)

    @property
    def sequences(self) -> list[ServingSequence]:
        return [sequence for sequence, _ in self.new_tokens]

    @property
    def new_tokens(self) -> list[tuple[ServingSequence, int]]:
        """All sequences in the order of the packed batch, with their number of new tokens."""
        return [(sequence, 1) for sequence in self.decode] + self.prefill

    @property
    def prefill_tokens(self) -> int:
        return sum(count for _, count in self.prefill)

    @property
    def completed_prefill(self) -> list[ServingSequence]:
        """Sequences whose prompt is read to its end in this step, before `computed` advances."""
        return [sequence for sequence, count in self.prefill if reads_all(sequence, count)]

    @property
    def logit_rows(self) -> list[int]:
        """Rows of the packed batch whose logits are sampled: the last token of each sequence."""
        ends = accumulate(count for _, count in self.new_tokens)
        chunks = zip(ends, self.new_tokens, strict=True)
        return [end - 1 for end, chunk in chunks if reads_all(*chunk)]

    def unfinished(self) -> ScheduledStep:
        """The step without sequences that have finished since it was scheduled."""
        if not any(sequence.finished for sequence in self.sequences):
            return self

        decode = [sequence for sequence in self.decode if not sequence.finished]
        prefill = [chunk for chunk in self.prefill if not chunk[0].finished]
        return ScheduledStep(decode, prefill)

    def split(self) -> list[ScheduledStep]:
        """One step per request, of its sequences that are not finished."""
        steps: dict[int, ScheduledStep] = defaultdict(ScheduledStep)
        for sequence in self.decode:
            if not sequence.finished:
                steps[sequence.handle.id].decode.append(sequence)

        for sequence, count in self.prefill:
            if not sequence.finished:
                steps[sequence.handle.id].prefill.append((sequence, count))

        return list(steps.values())


def reads_all(sequence: ServingSequence, count: int) -> bool:
    """Whether `count` more tokens are all that a sequence has."""
    return sequence.computed + count == sequence.num_tokens


class RunningByStatus(NamedTuple):
    """The running sequences at one version of the table."""

    version: int
    decode: list[ServingSequence]
    slots: Slots
    """The slots of `decode`."""
    prefill: list[ServingSequence]


@dataclass
class Scheduler:
    """Waiting and running sequences, and the slots and blocks they hold."""

    blocks: BlockAllocator
    """The allocator of the cache and of slots."""
    table: SequenceTable
    """The numbers of the running sequences, by slot."""
    max_sequences: int
    """Sequences that run at once."""
    max_prefill_tokens: int
    """Prompt tokens per step, besides the tokens of decoding sequences."""
    flush: Callable[[], object]
    """Called before a preemption, to finish sequences whose tokens are not read yet."""
    chunk_multiple: int = 1
    """A prompt is split at multiples of this many tokens."""
    prefix_caching: bool = False
    """Whether sequences with a common prefix share its blocks."""
    state_blocks: Callable[[ServingSequence], int] | None = None
    """For a model without pages: the blocks that a sequence's state counts for."""
    preempted: int = 0
    shared_tokens: int = 0
    waiting: deque[ServingSequence] = field(default_factory=deque)
    running: list[ServingSequence] = field(default_factory=list)
    """In the order of their arrival."""
    by_status: RunningByStatus | None = None

    def schedule(self, max_prefill_tokens: int | None = None) -> ScheduledStep:
        """The next step, with at most this many prompt tokens (never more than the scheduler's)."""
        version = self.table.version
        budget = self.max_prefill_tokens
        if max_prefill_tokens is not None:
            budget = min(budget, max_prefill_tokens)

        # Decode: one token of every sequence whose prompt is read
        decode, slots = self.schedule_decode()

        # Chunked prefill: as many prompt tokens as the budget allows
        prefill: list[tuple[ServingSequence, int]] = []
        remaining = budget
        for sequence in self.unread_prompts():
            count = self.chunk_size(sequence, remaining, budget)
            if count > 0 and self.allocate_blocks(sequence, count):
                prefill.append((sequence, count))
                remaining -= count
            if remaining <= 0:
                break

        # Drop what was preempted or finished on the way
        if self.table.version != version:
            prefill = [chunk for chunk in prefill if chunk[0].slot is not None]
            stays = [sequence.decoding and sequence.slot is not None for sequence in decode]
            decode = list(compress(decode, stays))
            slots = slots[stays]

        prefill.sort(key=lambda chunk: (chunk[0].computed > 0, chunk[1]))

        return ScheduledStep(decode, prefill, slots)

    def schedule_decode(self) -> tuple[list[ServingSequence], Slots]:
        """The sequences that decode, with room for one more position each, and their slots."""
        _, decode, slots, _ = self.running_by_status()
        runs = self.table.may_decode(slots)
        if not runs.all():
            decode = list(compress(decode, runs))
            slots = slots[runs]

        if self.state_blocks is None:
            rows = self.table.without_room(slots)
            self.add_blocks([decode[row] for row in rows.tolist()], slots[rows])

        return decode, slots

    def add_blocks(self, sequences: list[ServingSequence], slots: Slots) -> None:
        """Give a block to each of these running sequences, whose blocks are full."""
        if len(sequences) > len(self.blocks.free) or any(
            sequence.pool is not self.blocks for sequence in sequences
        ):
            for sequence in sequences:
                if sequence.slot is not None:  # not preempted for an earlier one
                    self.allocate_blocks(sequence, 1)

            return

        blocks = self.blocks.allocate_up_to(len(sequences))
        for sequence, block in zip(sequences, blocks, strict=True):
            sequence.block_table.append(block)

        self.table.add_blocks(slots, blocks)

    def running_by_status(self) -> RunningByStatus:
        """The running sequences, sorted again only after a change."""
        known = self.by_status
        if known is not None and known.version == self.table.version:
            return known

        decode: list[ServingSequence] = []
        prefill: list[ServingSequence] = []
        for sequence in self.running:
            if sequence.status is SequenceStatus.DECODE:
                decode.append(sequence)
            else:
                prefill.append(sequence)

        slots = np.array([sequence.slot for sequence in decode], dtype=np.int64)
        self.by_status = RunningByStatus(self.table.version, decode, slots, prefill)

        return self.by_status

    def unread_prompts(self) -> Iterator[ServingSequence]:
        """Running sequences whose prompt is not read, then waiting ones, which are admitted."""
        for sequence in self.running_by_status().prefill:
            if sequence.slot is not None:
                yield sequence

        while self.waiting and self.admit(self.waiting[0]):
            yield self.waiting.popleft()

    def chunk_size(self, sequence: ServingSequence, remaining: int, budget: int) -> int:
        """Tokens to read now: all that are left, or a multiple of `chunk_multiple` that fits.

        The first chunk of a step has at least one multiple, so that every prompt gets ahead.
        """
        left = sequence.num_tokens - sequence.computed
        if left <= remaining:
            return left

        count = remaining // self.chunk_multiple * self.chunk_multiple
        if not count and remaining == budget:
            return min(left, self.chunk_multiple)

        return count

    # Admission

    def admit(self, sequence: ServingSequence) -> bool:
        """Start a waiting sequence if a slot and blocks for all its known tokens are free."""
        first = sequence.first_sample
        if first is not None and not (first.finished or first.decoding):
            return False  # its prefix will be cached soon
        if sequence.request.beams > 1:
            return self.admit_search(sequence)
        if not self.blocks.slots:
            return False

        sequence.block_table = self.cached_prefix(sequence)
        source_blocks = self.source_blocks(sequence)
        known_blocks = self.blocks_needed(sequence, sequence.num_tokens)
        missing = known_blocks - len(sequence.block_table) + source_blocks
        # Decoding sequences may need another block; a state does not grow.
        reserve = bool(self.running) and self.state_blocks is None
        if missing + reserve > len(self.blocks.free):
            self.blocks.release(sequence.block_table)
            sequence.block_table = []
            return False

        sequence.computed = len(sequence.block_table) * BLOCK_SIZE
        self.shared_tokens += sequence.computed
        self.start(sequence, self.blocks)

        return True

    def admit_search(self, sequence: ServingSequence) -> bool:
        """Start a beam search with all blocks that its beams can need: it can then always fork."""
        beams = sequence.request.beams
        needed = beams * self.max_blocks(sequence)
        total = needed + self.source_blocks(sequence)
        if beams > len(self.blocks.slots) or total > len(self.blocks.free):
            return False

        self.start(sequence, self.blocks.reserve(needed, beams))

        return True

    def start(self, sequence: ServingSequence, pool: BlockAllocator) -> None:
        source_blocks = self.source_blocks(sequence)
        sequence.source_block_table = [self.blocks.allocate() for _ in range(source_blocks)]
        sequence.pool = pool
        sequence.join(self.table, pool.slots.pop())
        sequence.change_status(SequenceStatus.PREFILL)
        self.running.append(sequence)
        if self.state_blocks is not None:
            self.allocate_blocks(sequence, 0)  # all of the state

    def blocks_needed(self, sequence: ServingSequence, positions: int) -> int:
        """Blocks for the first positions of a sequence; a model state has a constant size."""
        if self.state_blocks is not None:
            return self.state_blocks(sequence)

        return blocks_for(positions)

    def max_blocks(self, sequence: ServingSequence) -> int:
        """Blocks a sequence can need, without its source; its last token is never read."""
        last = max(1, sequence.max_new_tokens) - 1
        return self.blocks_needed(sequence, sequence.prompt_length + last)

    def source_blocks(self, sequence: ServingSequence) -> int:
        """Blocks of a translator's source; a model state includes it."""
        if self.state_blocks is not None:
            return 0

        return blocks_for(len(sequence.source or ()))

    def cached_prefix(self, sequence: ServingSequence) -> list[int]:
        """Cached blocks of the sequence's beginning; its last token is always computed."""
        if not self.prefix_caching or sequence.scores_prompt:
            return []

        token_ids = sequence.token_ids
        return self.blocks.share_prefix(sequence.prefix_key, token_ids, len(token_ids) - 1)

    # Running

    def allocate_blocks(self, sequence: ServingSequence, count: int) -> bool:
        """Make room for `count` more positions; False if the sequence itself was preempted."""
        needed = self.blocks_needed(sequence, sequence.computed + count)
        while sequence.pool is not None and len(sequence.block_table) < needed:
            missing = needed - len(sequence.block_table)
            blocks = sequence.pool.allocate_up_to(missing)
            sequence.block_table += blocks
            if len(blocks) < missing:
                self.preempt_last()

        if sequence.slot is not None:
            self.table.hold_blocks(sequence.slot, sequence.block_table)

        return sequence.pool is not None

    def preempt_last(self) -> None:
        """Preempt the sequence that arrived last, unless one that just finished freed a block."""
        self.flush()
        if self.blocks.free:
            return

        last = next(other for other in reversed(self.running) if other.pool is self.blocks)
        self.preempted += 1
        self.remove(last)
        last.change_status(SequenceStatus.WAITING)
        self.waiting.appendleft(last)

    def fork(self, beam: ServingSequence) -> tuple[ServingSequence, list[tuple[int, int]]]:
        """A second sequence that continues a beam, and the blocks to copy as (from, to).

        Full blocks are shared; only the last, partly filled one is copied.
        """
        assert beam.pool is not None
        twin = beam.fork()
        twin.source_block_table = list(map(self.blocks.share, beam.source_block_table))
        self.running.insert(self.running.index(beam) + 1, twin)

        full = beam.computed // BLOCK_SIZE
        twin.block_table = list(map(beam.pool.share, beam.block_table[:full]))
        copies: list[tuple[int, int]] = []
        for block in beam.block_table[full:]:
            twin.block_table.append(beam.pool.allocate())
            copies.append((block, twin.block_table[-1]))

        twin.join(self.table, beam.pool.slots.pop())

        return twin, copies

    # Removal

    def sequences(self) -> list[ServingSequence]:
        """All running and waiting sequences."""
        return [*self.running, *self.waiting]

    def finish(self, sequence: ServingSequence) -> None:
        """Finish a sequence, wherever it is."""
        sequence.change_status(SequenceStatus.FINISHED)
        if sequence.pool is None:
            self.waiting.remove(sequence)
        else:
            self.remove(sequence)

    def remove(self, sequence: ServingSequence) -> None:
        """Free the slot and the blocks of a sequence that runs; a search's with its last beam."""
        pool = sequence.pool
        assert pool is not None
        self.cache_prefix(sequence)
        pool.release(sequence.block_table)
        pool.slots.append(sequence.leave())
        self.blocks.release(sequence.source_block_table)
        self.running.remove(sequence)
        sequence.block_table = []
        sequence.source_block_table = []
        sequence.known_prefix = KnownPrefix(sequence.prefix_key)
        sequence.pool = None

        if pool is not self.blocks and all(other.pool is not pool for other in self.running):
            self.blocks.take_back(pool)

    def cache_prefix(self, sequence: ServingSequence) -> None:
        """Register the computed blocks of a sequence for prefix caching."""
        if not self.prefix_caching or sequence.pool is not self.blocks:
            return

        # A token that only the device has cannot be looked up.
        token_ids = sequence.token_ids
        known = min(sequence.computed, len(token_ids))
        if known // BLOCK_SIZE > sequence.known_prefix.blocks:
            sequence.known_prefix = self.blocks.cache_prefix(
                token_ids, known, sequence.block_table, sequence.known_prefix
            )
