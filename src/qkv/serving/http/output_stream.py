"""Output of the engine: chunks of one or several requests, as choices, and results of jobs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from qkv.generation.stop import Reason
from qkv.serving.engine.generation_request import (
    TIMED_OUT,
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    TokenLogprob,
)
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.prompt_validation import LARGE, host_of
from qkv.serving.http.sse import DONE, EventStream, event, while_connected
from qkv.serving.model_host import ModelHost
from qkv.text.tokenizer import Tokenizer

T = TypeVar("T")
FINISH_REASONS: dict[Reason | None, str] = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "deadline": "length",
}
"""OpenAI's `finish_reason`; the more specific one is sent beside it as `reason`."""
GRACE = 0.2
"""Seconds after the deadline in which the engine may still send what it has."""


async def request_chunks(handle: RequestHandle) -> AsyncIterator[OutputChunk]:
    """The chunks of one request; it is aborted when the caller stops reading.

    At the deadline the stream ends even if the engine is busy with something else. Raises
    RequestRefused if there is no token by then.
    """
    chunks = aiter(handle)
    has_tokens = False
    unfinished = set(range(handle.request.samples))

    try:
        while unfinished:
            try:
                async with asyncio.timeout(seconds_left(handle.request.deadline)):
                    chunk = await anext(chunks)
            except TimeoutError:
                break

            has_tokens = has_tokens or bool(chunk.tokens)
            if chunk.reason == "deadline" and not has_tokens:
                raise RequestRefused(408, TIMED_OUT)

            if chunk.reason is not None:
                unfinished.discard(chunk.sample)

            yield chunk

        if unfinished and not has_tokens:
            raise RequestRefused(408, TIMED_OUT)

        for sample in sorted(unfinished):
            yield OutputChunk(sample, "", [], "deadline")
    finally:
        handle.abort()


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until the deadline, with some grace."""
    return None if deadline is None else deadline + GRACE - time.monotonic()


async def merged_chunks(
    host: ModelHost, name: str, requests: Sequence[GenerationRequest]
) -> AsyncIterator[tuple[int, OutputChunk]]:
    """Chunks of several requests as they come, with the index of their request.

    Either all requests are accepted or none.
    """
    if len(requests) > host.queue:
        raise ValueError(
            f"prompt: {len(requests)} prompts are more than the queue of {host.queue}; send fewer"
        )

    handles: list[RequestHandle] = []
    reading: dict[asyncio.Task[OutputChunk], tuple[int, AsyncIterator[OutputChunk]]] = {}

    def read_next(index: int, chunks: AsyncIterator[OutputChunk]) -> None:
        reading[asyncio.ensure_future(anext(chunks))] = (index, chunks)

    try:
        for request in requests:
            handles.append(host.submit(name, request))

        if len(handles) == 1:  # without tasks, which cost time
            async for chunk in request_chunks(handles[0]):
                yield 0, chunk

            return

        for index, handle in enumerate(handles):
            read_next(index, request_chunks(handle))

        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index, chunks = reading.pop(task)
                with suppress(StopAsyncIteration):
                    yield index, task.result()
                    read_next(index, chunks)
    finally:
        for handle in handles:
            handle.abort()

        for task in reading:
            if not task.cancel() and not task.cancelled():
                task.exception()  # of another prompt, which is reported already


async def job_result(
    request: Request, name: str, work: Callable[[Any, Tokenizer], T], deadline: float
) -> T:
    """The result of work on a model, which the engine runs between two steps."""
    handle = host_of(request).submit_job(name, work)
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            result: T = await handle.result()
            return result
    except TimeoutError:
        raise RequestRefused(408, TIMED_OUT) from None
    finally:
        handle.abort()


async def write_out(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Build a response of `size` tokens and alternatives; a large one in a thread of its own."""
    if size > LARGE:
        return await asyncio.to_thread(work, *arguments)

    return work(*arguments)


def token_usage(prompt: int, completion: int) -> dict[str, int]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


@dataclass
class ChoiceState:
    """The output of one choice so far."""

    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    reason: Reason | None = None
    score: float | None = None

    def add(self, chunk: OutputChunk) -> None:
        """Add the next chunk of the choice."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.reason = chunk.reason
        self.score = chunk.score


class ChoiceStream:
    """Turns chunks of the engine into the choices of a completion or of a chat completion.

    A format defines the names below, and how a choice writes its text and its logprobs.
    """

    prefix: str
    """Of the id of a response."""
    whole_object: str
    event_object: str

    def __init__(self, body: Any, tokenizer: Tokenizer, prompts: Sequence[list[int]]) -> None:
        self.body = body
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.samples: int = body.n or 1
        self.states = [ChoiceState() for _ in range(len(prompts) * self.samples)]
        self.begun: set[int] = set()
        """Choices that an event was sent of."""
        self.generated = 0
        self.head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model,
        }

    def message(self, text: str) -> dict[str, Any]:
        """The text of a choice in a whole response."""
        raise NotImplementedError

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The text of a choice in an event, which may be its first."""
        return self.message(text)

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The logprobs of a choice, if they were requested."""
        raise NotImplementedError

    async def response(self, request: Request, requests: Sequence[GenerationRequest]) -> Response:
        """Submit one request per prompt, and answer with events or with a whole response."""
        chunks = merged_chunks(host_of(request), self.body.model, requests)
        if self.body.stream:
            return EventStream(self.events(chunks))

        return await while_connected(request.receive, self.whole(chunks))

    async def whole(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> Response:
        """All choices as one response."""
        received = [pair async for pair in chunks]
        size = token_json.entries_in(chunk for _, chunk in received)
        return await write_out(size, self.completion, received)

    def completion(self, received: Sequence[tuple[int, OutputChunk]]) -> Response:
        for number, chunk in received:
            self.states[self.count(number, chunk)].add(chunk)

        choices = []
        for index, state in enumerate(self.states):
            choices.append(self.choice(index, self.message(state.text), state.tokens, state.reason))

        return Json(
            {
                **self.head,
                "object": self.whole_object,
                "choices": choices,
                "usage": self.usage(),
                **self.prompt_tokens(),
            }
        )

    async def events(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        """The choices as server-sent events."""
        head = {**self.head, "object": self.event_object}
        first = self.prompt_tokens()
        try:
            async for number, chunk in chunks:
                choice = await write_out(
                    token_json.entries_in([chunk]), self.event_choice, number, chunk
                )
                yield event({**head, "choices": [choice], **first})
                first = {}

            if self.body.include_usage:
                yield event({**head, "choices": [], "usage": self.usage()})

            yield DONE
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    def event_choice(self, number: int, chunk: OutputChunk) -> dict[str, Any]:
        """A chunk of request `number` as the choice of an event."""
        index = self.count(number, chunk)
        delta = self.delta(chunk.text, index not in self.begun)
        self.begun.add(index)
        return self.choice(index, delta, chunk.tokens, chunk.reason)

    def count(self, number: int, chunk: OutputChunk) -> int:
        """Count the new tokens of a chunk of request `number`; returns the index of its choice."""
        if not chunk.prompt:
            self.generated += len(chunk.tokens)

        return number * self.samples + chunk.sample

    def choice(
        self,
        index: int,
        text: dict[str, Any],
        tokens: Sequence[TokenLogprob],
        reason: Reason | None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            **text,
            "logprobs": self.logprobs(tokens),
            "finish_reason": FINISH_REASONS.get(reason),
            "reason": reason,
        }
        if self.body.tokens:
            choice["tokens"] = token_json.scored_tokens(self.tokenizer, tokens)

        return choice

    def usage(self) -> dict[str, int]:
        return token_usage(sum(map(len, self.prompts)), self.generated)

    def prompt_tokens(self) -> dict[str, Any]:
        """The tokens of the prompt, if the request asks for tokens."""
        if not self.body.tokens:
            return {}

        return {"prompt_tokens": token_json.prompt_tokens(self.tokenizer, self.prompts[0])}
