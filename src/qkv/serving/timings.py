"""Histograms of the engine, by model: queue time, first token, time per token, batch size.

A request is looked at when it is accepted, after each step, and when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Histogram

from qkv.serving.engine.generation_request import OutputChunk, RequestHandle, Update
from qkv.serving.engine.sequence import ServingSequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(slots=True)
class RequestTimes:
    """How far a request has come; times are of time.monotonic()."""

    model: str
    accepted: float
    started: bool = False
    first_token: float | None = None


class EngineTimings:
    """Observes the requests and steps of all models; clients' threads only call `accept`."""

    def __init__(self) -> None:
        self.queue = histogram("queue_seconds", "Seconds before the first step of a request.")
        self.first = histogram("time_to_first_token_seconds", "Seconds before the first token.")
        self.token = histogram("time_per_token_seconds", "Seconds per token after the first one.")
        self.batch = histogram("batch_size", "Sequences in a step of the engine.", ROWS)
        self.awaited: dict[RequestHandle, RequestTimes] = {}
        """Requests without a token: only these are looked at after a step."""
        self.began = 0.0
        """When the current step began."""
        self.ended = 0
        """Samples that have ended in it."""

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        return self.queue, self.first, self.token, self.batch

    def accept(self, model: str, handle: RequestHandle) -> None:
        """A request joins the queue of a model."""
        handle.times = self.awaited[handle] = RequestTimes(model, time.monotonic())

    def begin_step(self) -> None:
        """A step of any model begins."""
        self.began = time.monotonic()
        self.ended = 0

    def end_step(self, model: str, sequences: Sequence[ServingSequence]) -> None:
        """The step is done; `sequences` are running."""
        rows = len(sequences) + self.ended
        if rows:
            self.batch.labels(model).observe(rows)
        if not self.awaited:
            return

        for sequence in sequences:
            self.advance(sequence.handle, sequence.generated)

    def forget_aborted(self) -> None:
        """Requests without a client never get a token."""
        for handle in list(self.awaited):
            if handle.aborted:
                self.awaited.pop(handle, None)

    def advance(self, handle: RequestHandle, tokens: int) -> None:
        """A request was in the current step, and now has some tokens."""
        times = self.awaited.get(handle)
        if times is None:
            return

        if not times.started:
            times.started = True
            self.queue.labels(times.model).observe(max(0.0, self.began - times.accepted))

        if tokens:
            times.first_token = time.monotonic()
            self.first.labels(times.model).observe(times.first_token - times.accepted)
            del self.awaited[handle]

    def emit(self, handle: RequestHandle, update: Update) -> None:
        """An update is sent; the first sample of a request that ends counts for the request."""
        times = handle.times
        if not isinstance(update, OutputChunk):
            self.awaited.pop(handle, None)
            return

        self.ended += update.reason is not None
        if times is None or update.prompt:
            return

        self.advance(handle, len(update.token_ids))
        if update.reason is None:
            return

        handle.times = None
        self.awaited.pop(handle, None)
        further = (update.generated or len(update.token_ids)) - 1
        if further > 0 and times.first_token is not None and update.reason != "deadline":
            seconds = (time.monotonic() - times.first_token) / further
            self.token.labels(times.model).observe(seconds)


def histogram(name: str, meaning: str, buckets: Sequence[float] = SECONDS) -> Histogram:
    """A histogram by model, which every server of a host registers."""
    return Histogram(f"qkv_{name}", meaning, ("model",), buckets=buckets, registry=None)
