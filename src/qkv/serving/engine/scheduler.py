"""Schedule: who reads and who speaks in the next step, and who has which part of the cache.

First come, first served. Every text that speaks has one word in the step, and what is left of the
step's tokens goes to texts that still read their prompts, a long one in several parts. When the
cache is full, the text that came last gives its part back; it is read again, with what it has said,
when there is room. So the bytes are never exceeded, and nobody waits for one who came later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qkv.serving.engine.block_allocator import BLOCK, BlockAllocator, OutOfBlocks
from qkv.serving.engine.sequence import BeamSearchState, ServingSequence


@dataclass
class ScheduledStep:
    """One step."""

    speaking: list[ServingSequence] = field(default_factory=list)
    """Each reads the word that it said last."""
    reading: list[tuple[ServingSequence, int]] = field(default_factory=list)
    """So many tokens of each; texts that begin come first, those of one length side by side."""

    def __bool__(self) -> bool:
        return bool(self.speaking or self.reading)

    @property
    def texts(self) -> list[ServingSequence]:
        return self.speaking + [text for text, _ in self.reading]

    def alone(self) -> Iterator[ScheduledStep]:
        """Every text in a step of its own; all beams of a search in one, for they choose together."""
        searches = {
            id(text.search): text.search for text in self.speaking if text.search is not None
        }
        yield from (ScheduledStep(speaking=list(search.beams)) for search in searches.values())
        yield from (ScheduledStep(speaking=[text]) for text in self.speaking if text.search is None)
        yield from (ScheduledStep(reading=[both]) for both in self.reading)


class Scheduler:
    def __init__(
        self,
        blocks: BlockAllocator,
        rows: int,
        tokens: int,
        *,
        part: int = 1,
        shares: bool,
        states: Callable[[ServingSequence], int] | None = None,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """At most `rows` texts and, beside the words of those that speak, `tokens` a step, of each
        prompt in multiples of `part`.

        With `shares`, texts that begin alike share that part of the cache. `states` says how many
        blocks a text has that needs as many from its beginning to its end; `settle` is called
        before a text must give its part back.
        """
        self.blocks, self.rows, self.tokens, self.shares, self.states = (
            blocks,
            rows,
            tokens,
            shares,
            states,
        )

        self.part, self.settle = part, settle
        self.preempted = self.shared_tokens = 0
        self.waiting: deque[ServingSequence] = deque()
        self.running: list[ServingSequence] = []
        """The oldest first."""
        self.slots = list(range(rows - 1, -1, -1))

    def schedule(self, tokens: int | None = None) -> ScheduledStep:
        """The next step; it reads at most so many tokens of prompts, `self.tokens` unless given
        fewer.
        """
        speaking = [
            text
            for text in list(self.running)
            if text.speaks and not text.finished and self.grow(text, 1)
        ]
        reading: list[tuple[ServingSequence, int]] = []
        whole = room = self.tokens if tokens is None else min(tokens, self.tokens)

        for text in list(self.running):
            count = 0 if text.speaks else self.portion(text, room, whole)
            if count > 0 and self.grow(text, count):
                reading.append((text, count))
                room -= count

        while self.waiting and room > 0 and self.admit(self.waiting[0]):
            text = self.waiting.popleft()
            count = self.portion(text, room, whole)
            if count > 0 and self.grow(text, count):
                reading.append((text, count))
                room -= count

        reading = [
            (text, count) for text, count in reading if text.slot is not None
        ]  # some may have given way
        reading.sort(key=lambda both: (both[0].read > 0, both[1]))

        return ScheduledStep([text for text in speaking if text.slot is not None], reading)

    def portion(self, text: ServingSequence, room: int, whole: int) -> int:
        """How much of what it has to read it reads now: all, or whole parts; the first one of a
        step at least one. There is `room` for so many tokens, of the `whole` step's."""
        left = text.positions - text.read
        if left <= room:
            return left

        parts = room // self.part * self.part

        return parts or (min(left, self.part) if room == whole else 0)

    # Beginning

    def admit(self, text: ServingSequence) -> bool:
        """Let it begin, if there is a slot and room for all that it is to read."""
        if text.first is not None and not (text.first.ended or text.first.speaks):
            return False  # soon it will find its beginning there
        if text.search is not None:
            return self.admit_search(text, text.search)
        if not self.slots:
            return False

        source = self.source(text)
        if self.states is not None:
            text.table = self.taken(self.states(text))
            there = bool(text.table)
        else:
            text.table = self.beginning(text)
            text.read = len(text.table) * BLOCK
            needed = blocks_for(text.positions) - len(text.table) + source
            there = needed + bool(self.running) <= len(
                self.blocks.free
            )  # those that speak may need another one

        if not there:
            self.blocks.release(text.table)
            text.table, text.read = [], 0
            return False

        self.shared_tokens += text.read
        text.source_table = self.taken(source)
        text.slot = self.slots.pop()
        self.running.append(text)

        return True

    def admit_search(self, text: ServingSequence, search: BeamSearchState) -> bool:
        """A search begins with all that its beams may need, so that it can branch at any time."""
        source, most, beams = self.source(text), self.most(text), search.rule.beams
        if beams > len(self.slots) or beams * most + source > len(self.blocks.free):
            return False

        search.blocks = BlockAllocator(self.taken(beams * most))
        search.slots = [self.slots.pop() for _ in range(beams)]
        search.beams = [text]
        text.source_table = self.taken(source)
        text.slot = search.slots.pop()
        self.running.append(text)

        return True

    def most(self, text: ServingSequence) -> int:
        """Blocks that a text may need at most, beside those of its source; its last word is never
        read.
        """
        return (
            blocks_for(text.prompt + max(1, text.most) - 1)
            if self.states is None
            else self.states(text)
        )

    def source(self, text: ServingSequence) -> int:
        """Blocks of what a translator's decoder looks at; those of a state are counted with it."""
        return blocks_for(len(text.source or ())) if self.states is None else 0

    def taken(self, count: int) -> list[int]:
        return [self.blocks.take() for _ in range(count)] if count <= len(self.blocks.free) else []

    def beginning(self, text: ServingSequence) -> list[int]:
        """Blocks that others filled with the same; the last token is always read, for what comes
        after it.
        """
        if not self.shares or text.ask.prompt_top is not None:
            return []

        return self.blocks.shared(text.kind, text.ids, len(text.ids) - 1)

    # Going on

    def grow(self, text: ServingSequence, count: int) -> bool:
        """Room for so many more positions; False when the text itself had to give way, or has
        ended.
        """
        own = (
            self.blocks if text.search is None or text.search.blocks is None else text.search.blocks
        )
        while (
            text.slot is not None
            and self.states is None
            and len(text.table) < blocks_for(text.read + count)
        ):
            try:
                text.table.append(own.take())
            except OutOfBlocks:
                self.make_room()

        return text.slot is not None and not text.ended

    def make_room(self) -> None:
        """The one that came last gives its part back, and is read again later; unless someone has
        ended meanwhile.
        """
        self.settle()
        if self.blocks.free:
            return

        last = next(text for text in reversed(self.running) if text.search is None)
        self.preempted += 1
        self.leave(last)
        last.restart()
        self.waiting.appendleft(last)

    def branch(
        self, text: ServingSequence, search: BeamSearchState
    ) -> tuple[ServingSequence, list[tuple[int, int]]]:
        """A twin of a beam, and which block must be copied to which: those that are full, both have
        in common.
        """
        assert search.blocks is not None
        twin = text.twin()
        twin.slot = search.slots.pop()
        copied: list[tuple[int, int]] = []
        if self.states is None:
            full = text.read // BLOCK
            twin.table = [search.blocks.share(block) for block in text.table[:full]]
            twin.source_table = text.source_table
            copied = [(block, search.blocks.take()) for block in text.table[full:]]
            twin.table += [new for _, new in copied]

        self.running.insert(self.running.index(text) + 1, twin)

        return twin, copied

    # Leaving

    def leave(self, text: ServingSequence) -> None:
        """What it has is free."""
        if text.slot is not None and text.search is not None:
            self.leave_search(text.search)

        if text.slot is None:
            return

        self.know(text)
        self.blocks.release(text.table + text.source_table)
        self.slots.append(text.slot)
        self.running.remove(text)
        text.table, text.source_table, text.slot = [], [], None

    def know(self, text: ServingSequence) -> None:
        """What it has read others need not read again."""
        if self.shares and text.search is None:
            known = min(text.read, len(text.ids))  # a word that nobody has heard is not known
            self.blocks.know(text.kind, text.ids[:known], text.table)

    def prune(self, text: ServingSequence, search: BeamSearchState) -> None:
        """A beam that does not go on: its search may use what it had."""
        assert search.blocks is not None
        if text.slot is None:
            return

        search.blocks.release(text.table)
        search.slots.append(text.slot)
        self.running.remove(text)
        text.table, text.slot = [], None

    def leave_search(self, search: BeamSearchState) -> None:
        assert search.blocks is not None
        beams = [
            text for text in self.running if text.search is search
        ]  # also one that has just branched
        for beam in beams:
            self.prune(beam, search)

        self.blocks.release([*search.blocks.users, *beams[0].source_table])
        self.slots += search.slots
        search.beams, search.slots, search.blocks = [], [], None


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK)
