"""Output processor: sampled tokens to chunks, and the end of sequences and requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qkv.serving.engine.beam import search_chunks
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    TokenLogprob,
    Update,
)
from qkv.serving.engine.sampler import LaunchedStep, TopLogprobs
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import BeamSearchState, SequenceStatus, ServingSequence
from qkv.serving.error_log import as_exception, log_unexpected
from qkv.text.tokenizer import Tokenizer

Emit = Callable[[RequestHandle, Update], None]
"""Receives every update of a request."""


class OutputProcessor:
    """Ends or continues sequences by their new tokens, and emits what their clients receive."""

    def __init__(
        self, scheduler: Scheduler, tokenizer: Tokenizer, emit: Emit, counts: dict[str, int]
    ) -> None:
        """`counts` are the engine's counters, which are updated in place."""
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.emit = emit
        self.counts = counts

    def process(self, launched: LaunchedStep) -> None:
        """Wait for the tokens of a step, and add them to their sequences."""
        if launched.arrived is not None:
            launched.arrived.synchronize()

        token_ids = launched.token_ids.tolist()
        for row, sequence in enumerate(launched.sequences):
            if sequence.finished:
                continue  # it finished a step ago, or was dropped

            try:
                self.process_token(sequence, token_ids[row], launched.logprobs.get(row))
            except BaseException as error:
                self.fail(sequence, as_exception(error))

    def process_token(
        self, sequence: ServingSequence, token_id: int, top: TopLogprobs | None
    ) -> None:
        """Append a sampled token, and emit a chunk if the sequence ends or streams."""
        token = TokenLogprob(token_id, None, [])
        if top is not None:
            token = top.of_token(token_id)

        reason = sequence.append_token(token_id, token)
        if reason != "end":
            self.counts["said_tokens"] += 1

        if reason is not None:
            self.finish(sequence, sequence.take_chunk(reason))
            return

        request = sequence.request
        if request.stream and sequence.handle.accepts_chunk(request.samples):
            sequence.handle.unread += 1
            self.emit(sequence.handle, sequence.take_chunk(None))

    def finish(self, sequence: ServingSequence, chunk: OutputChunk) -> None:
        """End a sequence with its last chunk."""
        sequence.status = SequenceStatus.FINISHED
        self.scheduler.remove(sequence)
        self.counts["finished"] += 1
        self.emit(sequence.handle, chunk)

    def finish_late(self, sequence: ServingSequence) -> None:
        """End a sequence at its deadline; an unfinished beam search has no result."""
        if sequence.search is not None:
            message = "timeout: the deadline passed before the beam search was finished"
            self.fail(sequence, RequestRefused(408, message))
            return

        if sequence in self.scheduler.waiting:
            self.scheduler.waiting.remove(sequence)

        self.finish(sequence, sequence.take_chunk("deadline"))

    def finish_search(self, search: BeamSearchState) -> None:
        """End a beam search with its best hypotheses."""
        handle = search.beams[0].handle
        assert isinstance(handle.request, GenerationRequest)
        chunks = search_chunks(search, handle.request.samples, self.tokenizer)
        self.drop(handle)
        self.counts["finished"] += 1

        for chunk in chunks:
            self.emit(handle, chunk)
            self.counts["said_tokens"] += len(chunk.tokens)

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
                sequence.status = SequenceStatus.FINISHED
                self.scheduler.remove(sequence)

        waiting = self.scheduler.waiting
        self.scheduler.waiting = deque(
            sequence for sequence in waiting if sequence.handle is not handle
        )
