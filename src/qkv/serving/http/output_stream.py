"""Output of the engine: chunks of one or several requests, as choices, and results of jobs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from qkv.generation.stop import Reason
from qkv.serving.engine.generation_request import (
    TIMED_OUT,
    GenerationRequest,
    OutputChunk,
    RequestRefused,
    TokenLogprob,
)
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json, text_json
from qkv.serving.http.prompt_validation import LARGE, host_of
from qkv.serving.http.response_chunks import NumberedChunk, ResponseChunks
from qkv.serving.http.sse import DONE, EventStream, event, while_connected
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
SENTINEL = "\0"
"""Stands for the text in the event that a template is made of."""


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

    chunks: list[OutputChunk] = field(default_factory=list)
    reason: Reason | None = None
    score: float | None = None

    def add(self, chunk: OutputChunk) -> None:
        """Add the next chunk of the choice."""
        self.chunks.append(chunk)
        self.reason = chunk.reason
        self.score = chunk.score

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for chunk in self.chunks for token_id in chunk.token_ids]

    @property
    def tokens(self) -> list[TokenLogprob]:
        return [token for chunk in self.chunks for token in chunk.tokens]


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
        self.detailed = bool(body.tokens) or self.logprobs([]) is not None
        """Whether a response lists tokens."""
        self.templates: dict[int, tuple[bytes, bytes]] = {}
        """What stands before and after the text in the further events of a choice."""
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
        chunks = aiter(ResponseChunks(host_of(request), self.body.model, requests))
        if self.body.stream:
            return EventStream(self.events(chunks))

        return await while_connected(request.receive, self.whole(chunks))

    async def whole(self, batches: AsyncIterator[list[NumberedChunk]]) -> Response:
        """All choices as one response."""
        received = [pair async for chunks in batches for pair in chunks]
        return await write_out(self.size(received), self.completion, received)

    def size(self, received: Sequence[NumberedChunk]) -> int:
        """Number of tokens and alternatives to write out; 0 if only their text is written."""
        if not self.detailed:
            return 0

        return token_json.entries_in(chunk for _, chunk in received)

    def completion(self, received: Sequence[NumberedChunk]) -> Response:
        for number, chunk in received:
            self.states[self.count(number, chunk)].add(chunk)

        choices = []
        for index, state in enumerate(self.states):
            tokens = state.tokens if self.detailed else []
            choices.append(self.choice(index, self.message(state.text), tokens, state.reason))

        return Json(
            {
                **self.head,
                "object": self.whole_object,
                "choices": choices,
                "usage": self.usage(),
                **self.prompt_tokens(),
            }
        )

    async def events(self, batches: AsyncIterator[list[NumberedChunk]]) -> AsyncIterator[bytes]:
        """The choices as server-sent events; those of one batch are sent at once."""
        try:
            async for chunks in batches:
                yield await write_out(self.size(chunks), self.batch_events, chunks)

            if self.body.include_usage:
                head = {**self.head, "object": self.event_object}
                yield event({**head, "choices": [], "usage": self.usage()}) + DONE
            else:
                yield DONE
        finally:
            await batches.aclose()  # type: ignore[attr-defined]

    def batch_events(self, chunks: Sequence[NumberedChunk]) -> bytes:
        """The events of some chunks."""
        return b"".join(self.chunk_event(number, chunk) for number, chunk in chunks)

    def chunk_event(self, number: int, chunk: OutputChunk) -> bytes:
        """A chunk of request `number` as an event; most differ from the last in their text only."""
        index = self.count(number, chunk)
        if index in self.templates and chunk.reason is None:
            before, after = self.templates[index]
            return before + text_json(chunk.text) + after

        first = {} if self.begun else self.prompt_tokens()
        delta = self.delta(chunk.text, index not in self.begun)
        tokens = chunk.tokens if self.detailed else []
        choice = self.choice(index, delta, tokens, chunk.reason)
        self.begun.add(index)
        if not self.detailed:
            delta = self.delta(SENTINEL, False)
            template = self.event(self.choice(index, delta, [], None))
            before, _, after = template.rpartition(text_json(SENTINEL))
            self.templates[index] = (before, after)

        return self.event(choice, **first)

    def event(self, choice: dict[str, Any], **first: Any) -> bytes:
        return event({**self.head, "object": self.event_object, "choices": [choice], **first})

    def count(self, number: int, chunk: OutputChunk) -> int:
        """Count the new tokens of a chunk of request `number`; returns the index of its choice."""
        if not chunk.prompt:
            self.generated += len(chunk.token_ids)

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
