"""Chunks of the requests of one response, as they come from the engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from qkv.serving.engine.generation_request import (
    TIMED_OUT,
    GenerationRequest,
    Mailbox,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    Update,
)
from qkv.serving.model_host import ModelHost

GRACE = 0.2
"""Seconds after the deadline in which the engine may still send what it has."""
NumberedChunk = tuple[int, OutputChunk]
"""A chunk and the index of its request."""


class ResponseChunks:
    """The chunks of all requests of a response; they end together, at the latest at a deadline."""

    def __init__(self, host: ModelHost, name: str, requests: Sequence[GenerationRequest]) -> None:
        self.host = host
        self.name = name
        self.requests = requests
        self.numbers: dict[RequestHandle, int] = {}
        """Index of each request."""
        self.unfinished: dict[int, set[int]] = {}
        """Samples of each request that have not ended."""
        self.with_tokens: set[int] = set()
        """Requests that have a token."""

    async def __aiter__(self) -> AsyncIterator[list[NumberedChunk]]:
        """All chunks that have arrived since the last ones.

        Either all requests are accepted or none; they are aborted when the caller stops reading.
        """
        if len(self.requests) > self.host.queue:
            raise ValueError(
                f"prompt: {len(self.requests)} prompts are more than the queue of "
                f"{self.host.queue}; send fewer"
            )

        mailbox = Mailbox()
        timer = None
        try:
            self.submit(mailbox)
            deadline = self.requests[0].deadline if self.requests else None
            if deadline is not None:
                seconds = deadline + GRACE - time.monotonic()
                timer = mailbox.loop.call_later(max(0.0, seconds), mailbox.close)

            while self.unfinished:
                updates = await mailbox.take()
                chunks, error = self.read(updates)
                if chunks:
                    yield chunks
                if error is not None:
                    raise error
                if not updates:  # the deadline
                    yield self.end_late()
        finally:
            if timer is not None:
                timer.cancel()

            for handle in self.numbers:
                handle.abort()

    def submit(self, mailbox: Mailbox) -> None:
        for number, request in enumerate(self.requests):
            handle = self.host.submit(self.name, request, mailbox)
            self.numbers[handle] = number
            self.unfinished[number] = set(range(request.samples))

    def read(
        self, updates: Sequence[tuple[RequestHandle, Update]]
    ) -> tuple[list[NumberedChunk], Exception | None]:
        """The chunks before the first error, and that error."""
        chunks: list[NumberedChunk] = []
        for handle, update in updates:
            if isinstance(update, Exception):
                return chunks, update

            assert isinstance(update, OutputChunk)
            number = self.numbers[handle]
            if update.token_ids:
                self.with_tokens.add(number)
            elif update.reason == "deadline" and number not in self.with_tokens:
                return chunks, RequestRefused(408, TIMED_OUT)

            if update.reason is not None:
                self.finish(number, update.sample)

            chunks.append((number, update))

        return chunks, None

    def finish(self, number: int, sample: int) -> None:
        samples = self.unfinished.get(number, set())
        samples.discard(sample)
        if not samples:
            self.unfinished.pop(number, None)

    def end_late(self) -> list[NumberedChunk]:
        """The last chunks at the deadline, although the engine is busy with something else.

        Raises RequestRefused if a request has no token by then.
        """
        chunks: list[NumberedChunk] = []
        for number, samples in self.unfinished.items():
            if number not in self.with_tokens:
                raise RequestRefused(408, TIMED_OUT)

            for sample in sorted(samples):
                chunks.append((number, OutputChunk(sample, "", [], "deadline")))

        self.unfinished = {}
        return chunks


async def merged_chunks(
    host: ModelHost, name: str, requests: Sequence[GenerationRequest]
) -> AsyncIterator[NumberedChunk]:
    """The chunks of several requests one by one."""
    batches = aiter(ResponseChunks(host, name, requests))
    try:
        async for chunks in batches:
            for chunk in chunks:
                yield chunk
    finally:
        await batches.aclose()  # type: ignore[attr-defined]
