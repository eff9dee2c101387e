"""Output processor: sampled tokens to chunks, and the end of sequences and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from qkv.serving.engine.generation_request import (
    OutputChunk,
    RequestHandle,
    RequestRefused,
    Update,
)
from qkv.serving.engine.sampler import LaunchedStep
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import ScoredToken, ServingSequence
from qkv.serving.engine.sequence_table import SequenceTable, Slots
from qkv.serving.error_log import as_exception, log_unexpected

Emit = Callable[[RequestHandle, Update], None]
"""Receives every update of a request."""


@dataclass
class OutputProcessor:
    """Ends or continues sequences by their new tokens, and emits what their clients receive."""

    scheduler: Scheduler
    table: SequenceTable
    emit: Emit
    counts: dict[str, int]
    """The engine's counters, which are updated in place."""

    def process(self, launched: LaunchedStep) -> None:
        """Wait for the tokens of a step, and add them to their sequences."""
        if launched.arrived is not None:
            launched.arrived.synchronize()

        token_ids = launched.token_ids.numpy()
        tops: dict[int, ScoredToken] = {}
        for rows, top in launched.logprobs.items():
            tops |= zip(rows, top.on_host(), strict=True)

        # Most rows only collect their token
        received = self.table.receive(launched.slots, launched.owner, token_ids)
        self.counts["said_tokens"] += received.collected
        if received.relayed.size:
            self.relay(launched, received.relayed)

        for row in received.streaming.tolist():
            self.run_isolated(self.stream, launched.sequences[row])

        for row in received.due.tolist():
            self.run_isolated(self.catch_up, launched.sequences[row])

        for row in received.others.tolist():
            add_token = partial(self.process_token, token_id=int(token_ids[row]), top=tops.get(row))
            self.run_isolated(add_token, launched.sequences[row])

    def run_isolated(
        self, process: Callable[[ServingSequence], None], sequence: ServingSequence
    ) -> None:
        """Process a sequence; an error, such as a tokenizer's that panics, ends its request only.

        A sequence that a failure of its request has ended is left out.
        """
        if sequence.finished:
            return

        try:
            process(sequence)
        except BaseException as error:
            self.fail(sequence, as_exception(error))

    def process_token(
        self, sequence: ServingSequence, token_id: int, top: ScoredToken | None
    ) -> None:
        """Append a sampled token, and emit a chunk if the sequence ends or streams."""
        reason = sequence.append_token(token_id, top)
        if reason != "end":
            self.counts["said_tokens"] += 1

        if reason is not None:
            self.finish([sequence], [sequence.take_chunk(reason)])
        elif sequence.request.stream:
            self.stream(sequence)

    def relay(self, launched: LaunchedStep, rows: Slots) -> None:
        """Send the new token of each of these rows to the outlet of its request.

        Requests whose outlet fails are aborted, since their streams would have gaps.
        """
        slots = launched.slots[rows]
        token_ids = launched.token_ids.numpy()[rows]
        for outlet, mine in self.table.by_outlet(slots):
            try:
                outlet.deliver_tokens(self.table.numbers[slots[mine]], token_ids[mine])
            except Exception as error:
                log_unexpected(error)
                for row in rows[mine].tolist():
                    launched.sequences[row].handle.abort()

    def stream(self, sequence: ServingSequence) -> None:
        """Emit the new tokens, unless the client has chunks to read."""
        handle = sequence.handle
        if handle.accepts_chunk(sequence.request.samples):
            handle.unread += 1
            self.emit(handle, sequence.take_chunk(None))

    def catch_up(self, sequence: ServingSequence) -> None:
        """Do the work of the tokens so far while the device computes.

        Sequences that arrive together often end together, and the device would wait for this work.
        """
        sequence.detokenize()
        if sequence.known_prefix.complete:
            self.scheduler.cache_prefix(sequence)

    def finish(self, sequences: Sequence[ServingSequence], chunks: Sequence[OutputChunk]) -> None:
        """End sequences of one request with their last chunks."""
        self.counts["finished"] += 1
        for sequence in sequences:
            self.scheduler.finish(sequence)

        for chunk in chunks:
            self.emit(sequences[0].handle, chunk)

    def finish_late(self, sequence: ServingSequence) -> None:
        """End a sequence at its deadline; an unfinished beam search has no result."""
        if sequence.request.beams == 1:
            self.finish([sequence], [sequence.take_chunk("deadline")])
            return

        message = "timeout: the deadline passed before the beam search was finished"
        self.fail(sequence, RequestRefused(408, message))

    def fail(self, sequence: ServingSequence, error: Exception) -> None:
        """End a request with an error; the client gets only the type of an unexpected one."""
        if not isinstance(error, RequestRefused):
            log_unexpected(error)
            if not isinstance(error, RuntimeError):
                error = RuntimeError(f"model: {type(error).__name__}")

        self.counts["failed"] += 1
        self.drop(sequence.handle)
        self.emit(sequence.handle, error)

    def drop(self, handle: RequestHandle) -> None:
        """Remove all sequences of a request."""
        for sequence in self.scheduler.sequences():
            if sequence.handle is handle:
                self.scheduler.finish(sequence)
