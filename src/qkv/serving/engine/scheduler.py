"""Scheduler: which sequences run in the next step, and their blocks of the KV cache.

Continuous batching, first come, first served. Every decoding sequence gets one token in a step;
the rest of the step's token budget goes to prompts, a long one in several chunks (chunked
prefill). When the cache is full, the sequence that arrived last is preempted: it gives its blocks
back and is recomputed later. So the cache never grows, and no sequence waits for a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qkv.serving.engine.block_allocator import BLOCK_SIZE, BlockAllocator, OutOfBlocks, blocks_for
from qkv.serving.engine.sequence import BeamSearchState, SequenceStatus, ServingSequence


@dataclass
class ScheduledStep:
    """The sequences of one step."""

    decode: list[ServingSequence] = field(default_factory=list)
    """Each reads the token that was sampled last."""
    prefill: list[tuple[ServingSequence, int]] = field(default_factory=list)
    """Sequences with their number of tokens to read; those without a past first."""

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
        completed = []
        for sequence, count in self.prefill:
            if sequence.computed + count == sequence.num_tokens:
                completed.append(sequence)

        return completed

    @property
    def logit_rows(self) -> list[int]:
        """Rows of the packed batch whose logits are sampled: the last token of each sequence."""
        rows = list(range(len(self.decode)))
        end = len(self.decode)
        for sequence, count in self.prefill:
            end += count
            if sequence.computed + count == sequence.num_tokens:
                rows.append(end - 1)

        return rows

    def split(self) -> Iterator[ScheduledStep]:
        """One step per sequence; the beams of a search stay together."""
        searches: dict[int, BeamSearchState] = {}
        for sequence in self.decode:
            if sequence.search is not None:
                searches[id(sequence.search)] = sequence.search

        for search in searches.values():
            yield ScheduledStep(decode=list(search.beams))

        for sequence in self.decode:
            if sequence.search is None:
                yield ScheduledStep(decode=[sequence])

        for sequence, count in self.prefill:
            yield ScheduledStep(prefill=[(sequence, count)])


class Scheduler:
    """Waiting and running sequences, and the slots and blocks they hold."""

    def __init__(
        self,
        blocks: BlockAllocator,
        max_sequences: int,
        max_prefill_tokens: int,
        *,
        chunk_multiple: int = 1,
        prefix_caching: bool,
        state_blocks: Callable[[ServingSequence], int] | None = None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a scheduler with all slots and blocks free.

        Args:
            blocks: The allocator of the cache.
            max_sequences: Sequences that run at once.
            max_prefill_tokens: Prompt tokens per step, besides the tokens of decoding sequences.
            chunk_multiple: A prompt is split at multiples of this many tokens.
            prefix_caching: Whether sequences with a common prefix share its blocks.
            state_blocks: For a model without pages: the blocks that a sequence's state counts for.
            flush: Called before a preemption, to finish sequences whose tokens are not read yet.
        """
        self.blocks = blocks
        self.max_sequences = max_sequences
        self.max_prefill_tokens = max_prefill_tokens
        self.chunk_multiple = chunk_multiple
        self.prefix_caching = prefix_caching
        self.state_blocks = state_blocks
        self.flush = flush
        self.preempted = 0
        self.shared_tokens = 0
        self.waiting: deque[ServingSequence] = deque()
        self.running: list[ServingSequence] = []
        """In the order of their arrival."""
        self.slots = list(range(max_sequences - 1, -1, -1))
        """Free slots."""

    def schedule(self, max_prefill_tokens: int | None = None) -> ScheduledStep:
        """The next step, with at most this many prompt tokens (never more than the scheduler's)."""
        budget = self.max_prefill_tokens
        if max_prefill_tokens is not None:
            budget = min(budget, max_prefill_tokens)

        # Decode: one token of every sequence whose prompt is read
        decode: list[ServingSequence] = []
        for sequence in list(self.running):
            runs = sequence.decoding and not sequence.at_max_tokens
            if runs and self.allocate_blocks(sequence, 1):
                decode.append(sequence)

        # Chunked prefill: prompts that are already running, then waiting ones
        prefill: list[tuple[ServingSequence, int]] = []
        remaining = budget
        for sequence in list(self.running):
            if not sequence.decoding:
                remaining -= self.schedule_chunk(sequence, remaining, budget, prefill)

        while self.waiting and remaining > 0 and self.admit(self.waiting[0]):
            sequence = self.waiting.popleft()
            remaining -= self.schedule_chunk(sequence, remaining, budget, prefill)

        # Drop what was preempted on the way
        decode = [sequence for sequence in decode if sequence.slot is not None]
        prefill = [(sequence, count) for sequence, count in prefill if sequence.slot is not None]
        prefill.sort(key=lambda chunk: (chunk[0].computed > 0, chunk[1]))

        return ScheduledStep(decode, prefill)

    def schedule_chunk(
        self,
        sequence: ServingSequence,
        remaining: int,
        budget: int,
        prefill: list[tuple[ServingSequence, int]],
    ) -> int:
        """Add the next chunk of a prompt to `prefill`; returns its number of tokens."""
        count = self.chunk_size(sequence, remaining, budget)
        if count > 0 and self.allocate_blocks(sequence, count):
            prefill.append((sequence, count))
            return count

        return 0

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
        if sequence.search is not None:
            return self.admit_search(sequence, sequence.search)
        if not self.slots:
            return False

        source_blocks = self.source_blocks(sequence)
        if self.state_blocks is not None:
            sequence.block_table = self.allocate(self.state_blocks(sequence))
            fits = bool(sequence.block_table)
        else:
            sequence.block_table = self.cached_prefix(sequence)
            sequence.computed = len(sequence.block_table) * BLOCK_SIZE
            missing = blocks_for(sequence.num_tokens) - len(sequence.block_table) + source_blocks
            reserve = bool(self.running)  # decoding sequences may need another block
            fits = missing + reserve <= len(self.blocks.free)

        if not fits:
            self.blocks.release(sequence.block_table)
            sequence.block_table = []
            sequence.computed = 0
            return False

        self.shared_tokens += sequence.computed
        sequence.source_block_table = self.allocate(source_blocks)
        self.start(sequence, self.slots.pop())

        return True

    def admit_search(self, sequence: ServingSequence, search: BeamSearchState) -> bool:
        """Start a beam search with all blocks that its beams can need: it can then always fork."""
        beams = search.rule.beams
        reserved = beams * self.max_blocks(sequence)
        source_blocks = self.source_blocks(sequence)
        if beams > len(self.slots) or reserved + source_blocks > len(self.blocks.free):
            return False

        search.blocks = BlockAllocator(self.allocate(reserved))
        search.slots = [self.slots.pop() for _ in range(beams)]
        search.beams = [sequence]
        sequence.source_block_table = self.allocate(source_blocks)
        self.start(sequence, search.slots.pop())

        return True

    def start(self, sequence: ServingSequence, slot: int) -> None:
        sequence.slot = slot
        sequence.status = SequenceStatus.PREFILL
        self.running.append(sequence)

    def max_blocks(self, sequence: ServingSequence) -> int:
        """Blocks a sequence can need, without its source; its last token is never read."""
        if self.state_blocks is not None:
            return self.state_blocks(sequence)

        return blocks_for(sequence.prompt_length + max(1, sequence.max_new_tokens) - 1)

    def source_blocks(self, sequence: ServingSequence) -> int:
        """Blocks of a translator's source; a model state includes it."""
        if self.state_blocks is not None:
            return 0

        return blocks_for(len(sequence.source or ()))

    def allocate(self, count: int) -> list[int]:
        """Some free blocks, or none if there are too few."""
        if count > len(self.blocks.free):
            return []

        return [self.blocks.allocate() for _ in range(count)]

    def cached_prefix(self, sequence: ServingSequence) -> list[int]:
        """Cached blocks of the sequence's beginning; its last token is always computed."""
        if not self.prefix_caching or sequence.request.prompt_logprobs is not None:
            return []

        token_ids = sequence.token_ids
        return self.blocks.share_prefix(sequence.prefix_key, token_ids, len(token_ids) - 1)

    # Running

    def allocate_blocks(self, sequence: ServingSequence, count: int) -> bool:
        """Make room for `count` more positions; False if the sequence itself was preempted."""
        blocks = self.blocks
        if sequence.search is not None and sequence.search.blocks is not None:
            blocks = sequence.search.blocks

        needed = 0
        if self.state_blocks is None:
            needed = blocks_for(sequence.computed + count)

        while sequence.slot is not None and len(sequence.block_table) < needed:
            try:
                sequence.block_table.append(blocks.allocate())
            except OutOfBlocks:
                self.preempt_last()

        return sequence.slot is not None and not sequence.finished

    def preempt_last(self) -> None:
        """Preempt the sequence that arrived last, unless one that just finished freed a block."""
        self.flush()
        if self.blocks.free:
            return

        last = next(sequence for sequence in reversed(self.running) if sequence.search is None)
        self.preempted += 1
        self.remove(last)
        last.reset()
        self.waiting.appendleft(last)

    def fork(
        self, beam: ServingSequence, search: BeamSearchState
    ) -> tuple[ServingSequence, list[tuple[int, int]]]:
        """A second sequence that continues a beam, and the blocks to copy as (from, to).

        Full blocks are shared; only the last, partly filled one is copied.
        """
        assert search.blocks is not None
        twin = beam.fork()
        twin.slot = search.slots.pop()
        copies: list[tuple[int, int]] = []

        if self.state_blocks is None:
            full = beam.computed // BLOCK_SIZE
            twin.source_block_table = beam.source_block_table
            for block in beam.block_table[:full]:
                twin.block_table.append(search.blocks.share(block))

            for block in beam.block_table[full:]:
                copy = search.blocks.allocate()
                twin.block_table.append(copy)
                copies.append((block, copy))

        self.running.insert(self.running.index(beam) + 1, twin)

        return twin, copies

    # Removal

    def sequences(self) -> list[ServingSequence]:
        """All running and waiting sequences."""
        return [*self.running, *self.waiting]

    def remove(self, sequence: ServingSequence) -> None:
        """Free the slot and the blocks of a sequence; those of all beams, if it is one."""
        if sequence.slot is not None and sequence.search is not None:
            self.remove_search(sequence.search)

        if sequence.slot is None:
            return

        self.cache_prefix(sequence)
        self.blocks.release(sequence.block_table + sequence.source_block_table)
        self.slots.append(sequence.slot)
        self.running.remove(sequence)
        sequence.block_table = []
        sequence.source_block_table = []
        sequence.slot = None

    def cache_prefix(self, sequence: ServingSequence) -> None:
        """Register the computed blocks of a sequence for prefix caching."""
        if not self.prefix_caching or sequence.search is not None:
            return

        # A token that only the device has cannot be looked up.
        known = min(sequence.computed, len(sequence.token_ids))
        self.blocks.cache_prefix(
            sequence.prefix_key, sequence.token_ids[:known], sequence.block_table
        )

    def prune(self, beam: ServingSequence, search: BeamSearchState) -> None:
        """Return the slot and blocks of a dropped beam to its search."""
        assert search.blocks is not None
        if beam.slot is None:
            return

        search.blocks.release(beam.block_table)
        search.slots.append(beam.slot)
        self.running.remove(beam)
        beam.block_table = []
        beam.slot = None

    def remove_search(self, search: BeamSearchState) -> None:
        """Free everything that a beam search reserved."""
        assert search.blocks is not None
        # Not search.beams: a fork that has just been created is not listed there yet.
        beams = [sequence for sequence in self.running if sequence.search is search]
        for beam in beams:
            self.prune(beam, search)

        self.blocks.release([*search.blocks.ref_counts, *beams[0].source_block_table])
        self.slots += search.slots
        search.beams = []
        search.slots = []
        search.blocks = None
