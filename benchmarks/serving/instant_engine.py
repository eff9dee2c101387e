"""An engine that computes nothing: one step gives every request its next token.

It takes the place of `qkv.serving.engine.engine.Engine` in a host, so that a benchmark measures
the server around the engine. Requests have one sample, and end after their number of tokens.
"""

from __future__ import annotations

import time
from typing import Any

from qkv.generation.stop import Reason, StopStringFilter
from qkv.models.model import Model
from qkv.serving.engine.engine import COUNTERS
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    RequestHandle,
)
from qkv.serving.engine.output_processor import Emit
from qkv.text.tokenizer import Tokenizer

STEP_SECONDS = 0.001
"""The least time of a step: 256 thousand tokens/s with 256 requests."""


class InstantSequence:
    """A request that is being answered."""

    def __init__(self, handle: RequestHandle, tokenizer: Tokenizer) -> None:
        self.handle = handle
        self.generated = 0
        self.new_ids: list[int] = []
        self.text = StopStringFilter(tokenizer, ())

    def take_chunk(self, reason: Reason | None) -> OutputChunk:
        token_ids = self.new_ids
        self.new_ids = []
        if self.handle.request.detokenize:
            self.text.add_tokens(token_ids)
        return OutputChunk(0, self.text.take(), token_ids, reason, generated=self.generated)


class Nothing:
    """What a host asks of a runner and of a scheduler."""

    def __init__(self) -> None:
        self.running: list[InstantSequence] = []
        self.waiting: list[InstantSequence] = []

    def warm_up(self, rows: int) -> None:
        """There is nothing to warm up."""


class InstantEngine:
    """Emits one token for each request in each step."""

    def __init__(self, model: Model, tokenizer: Tokenizer, emit: Emit, **options: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.emit = emit
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.runner = Nothing()
        self.scheduler = Nothing()
        self.waiting_requests: list[RequestHandle] = []

    def check(self, request: GenerationRequest) -> None:
        """Every request is accepted."""

    def add_request(self, handle: RequestHandle) -> None:
        """The request is in the next step."""
        self.scheduler.running.append(InstantSequence(handle, self.tokenizer))

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running)

    def catch_up(self, *, others: bool) -> bool:
        """Drop requests whose client is gone."""
        running = self.scheduler.running
        self.scheduler.running = [one for one in running if not one.handle.aborted]
        return False

    def step(self, *, short: bool = False) -> bool:
        """One token for each request."""
        began = time.monotonic()
        for sequence in list(self.scheduler.running):
            self.advance(sequence)

        self.counts["steps"] += 1
        time.sleep(max(0.0, STEP_SECONDS + began - time.monotonic()))
        return True

    def advance(self, sequence: InstantSequence) -> None:
        handle = sequence.handle
        sequence.generated += 1
        token_id = 300 + (7919 * sequence.generated + handle.id) % 40_000
        sequence.new_ids.append(token_id)
        self.counts["said_tokens"] += 1
        if sequence.generated >= handle.request.max_tokens:
            self.counts["finished"] += 1
            self.scheduler.running.remove(sequence)
            self.emit(handle, sequence.take_chunk("length"))
        elif handle.request.stream and handle.accepts_chunk(1):
            handle.unread += 1
            self.emit(handle, sequence.take_chunk(None))

    def handles(self) -> list[RequestHandle]:
        return [sequence.handle for sequence in self.scheduler.running]

    def metrics(self) -> dict[str, float]:
        return {**self.counts}
