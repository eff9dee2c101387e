"""POST /v1/completions: continue one prompt or several, in OpenAI's format."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.generation.stop import StopStringFilter
from qkv.models import GPT
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk, Reason
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import merged_chunks, write_out
from qkv.serving.http.params import (
    check_logprob_entries,
    parse_heads_off,
    request_deadline,
    request_seed,
    sampling_params,
)
from qkv.serving.http.prompt_validation import (
    check_family,
    host_of,
    max_new_tokens,
    prepare,
    prompt_token_ids,
    ready_model,
)
from qkv.serving.http.schema.openai_schema import CompletionRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import CompletionReply
from qkv.serving.http.sse import DONE, EventStream, event, while_connected
from qkv.text.detokenizer import IncrementalDetokenizer
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["OpenAI"])
DEFAULT_MAX_TOKENS = 16
FINISH_REASONS: dict[Reason, str] = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "deadline": "length",
}
"""OpenAI's `finish_reason`; the more specific one is sent beside it as `reason`."""


@router.post("/v1/completions", responses=documented(CompletionReply, also=STREAMED))
async def complete(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt."""
    entry, model, tokenizer = ready_model(request, body.model)
    check_family(model, body.model, GPT, "does not continue a prompt")
    deadline = request_deadline(request, body.timeout)
    heads_off = parse_heads_off(model, body.heads_off)

    # Tokenize the prompts
    def encode() -> list[list[int]]:
        return [prompt_token_ids(model, tokenizer, prompt) for prompt in body.prompts]

    size = sum(map(len, body.prompts))
    prompts = await prepare(request, entry, deadline, size, encode)

    # Build one request per prompt
    requests: list[GenerationRequest] = []
    for ids in prompts:
        requests.append(generation_request(body, model, tokenizer, ids, heads_off, deadline))

    check_logprob_entries(requests)

    # Answer
    echo_size = sum(map(len, prompts)) if body.echo else 0
    reply = await prepare(
        request, entry, deadline, echo_size, CompletionStream, body, tokenizer, prompts
    )
    chunks = merged_chunks(host_of(request), body.model, requests)
    if body.stream:
        return EventStream(reply.events(chunks))

    return await while_connected(request.receive, reply.whole(chunks))


def generation_request(
    body: CompletionRequest,
    model: GPT,
    tokenizer: Tokenizer,
    ids: list[int],
    heads_off: tuple[tuple[int, int], ...],
    deadline: float,
) -> GenerationRequest:
    """The engine's request for one prompt."""
    logprobs = body.logprobs
    if logprobs is None and body.tokens:
        logprobs = 0

    wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return GenerationRequest(
        prompt=ids,
        max_tokens=max_new_tokens(model, ids, wanted),
        sampling=sampling_params(body),
        end_ids=() if tokenizer.end is None else (tokenizer.end,),
        stop=body.stops,
        samples=body.n or 1,
        seed=request_seed(body.seed),
        logprobs=logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        heads_off=heads_off,
        stream=bool(body.stream),
        deadline=deadline,
    )


class CompletionChoiceState:
    """The output of one choice so far."""

    def __init__(
        self, tokenizer: Tokenizer, echo: str, prompt: IncrementalDetokenizer, stop: tuple[str, ...]
    ) -> None:
        self.echo = echo
        """Text of the prompt that is still to be sent."""
        self.text = ""
        self.offsets = token_json.TokenStream(tokenizer)
        """Offsets of the tokens in the text, including the echo."""
        self.token_stream = token_json.TokenStream(tokenizer)
        self.tokens: list[dict[str, Any]] = []
        self.logprobs: dict[str, Any] | None = None
        self.reason: Reason | None = None

        # After an echo the detokenizer continues the prompt: the text of a token depends on the
        # token before it, so it may start with a space, or with the rest of a character.
        self.after_echo = StopStringFilter(tokenizer, stop)
        stream = self.after_echo.detokenizer
        stream.last_ids = list(prompt.last_ids)
        stream.pending = list(prompt.pending)
        stream.utf8_decoder.setstate(prompt.utf8_decoder.getstate())

    def text_after_echo(self, chunk: OutputChunk) -> str:
        """The text of a chunk as the continuation of the echoed prompt."""
        if self.after_echo.stopped:
            return ""

        self.after_echo.add_tokens(token.id for token in chunk.tokens)
        if chunk.reason is not None:
            self.after_echo.close()

        return self.after_echo.take()


class CompletionStream:
    """Turns chunks of the engine into the choices of a completion."""

    def __init__(
        self, body: CompletionRequest, tokenizer: Tokenizer, prompts: list[list[int]]
    ) -> None:
        self.body = body
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.samples = body.n or 1
        self.generated = 0
        self.states: list[CompletionChoiceState] = []
        for ids in prompts:
            prompt = IncrementalDetokenizer(tokenizer)
            echo = prompt.add_all(ids) if body.echo else ""
            for _ in range(self.samples):
                self.states.append(CompletionChoiceState(tokenizer, echo, prompt, body.stops))

        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }

    def usage(self) -> dict[str, int]:
        return token_usage(sum(map(len, self.prompts)), self.generated)

    def choices(self, number: int, chunk: OutputChunk) -> list[dict[str, Any]]:
        """What a chunk of request `number` adds: to one choice, or with prompt logprobs to all."""
        first = number * self.samples
        if self.expects_prompt(first):
            return [self.choice(first + sample, chunk) for sample in range(self.samples)]

        self.generated += len(chunk.tokens)
        return [self.choice(first + chunk.sample, chunk)]

    def expects_prompt(self, index: int) -> bool:
        """Whether the next chunk of a choice has the prompt's logprobs."""
        if not self.body.echo or self.body.logprobs is None:
            return False

        return self.states[index].logprobs is None

    def choice(self, index: int, chunk: OutputChunk) -> dict[str, Any]:
        """What a chunk adds to a choice, as the choice of an event."""
        body = self.body
        state = self.states[index]
        text = chunk.text
        if body.echo and not self.expects_prompt(index):
            text = state.text_after_echo(chunk)

        text = state.echo + text
        state.echo = ""
        state.text += text
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
            "reason": None,
        }

        if body.logprobs is not None:
            choice["logprobs"] = token_json.completion_logprobs(
                self.tokenizer, chunk.tokens, body.logprobs, state.offsets
            )
            state.logprobs = joined(state.logprobs, choice["logprobs"])

        if body.tokens:
            choice["tokens"] = state.token_stream.scored_tokens(chunk.tokens)
            state.tokens += choice["tokens"]

        if chunk.reason is not None:
            state.reason = chunk.reason
            choice["finish_reason"] = FINISH_REASONS[chunk.reason]
            choice["reason"] = chunk.reason

        return choice

    async def whole(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> Response:
        """The completion as one response."""
        received = [pair async for pair in chunks]
        size = token_json.entries_in(chunk for _, chunk in received)
        return await write_out(size, lambda: Json(self.completion(received)))

    def completion(self, received: list[tuple[int, OutputChunk]]) -> dict[str, Any]:
        for number, chunk in received:
            self.choices(number, chunk)

        choices = []
        for index, state in enumerate(self.states):
            assert state.reason is not None
            choice = {
                "index": index,
                "text": state.text,
                "logprobs": state.logprobs,
                "finish_reason": FINISH_REASONS[state.reason],
                "reason": state.reason,
            }
            if self.body.tokens:
                choice["tokens"] = state.tokens

            choices.append(choice)

        return {**self.head, "choices": choices, "usage": self.usage(), **self.prompt_tokens()}

    def prompt_tokens(self) -> dict[str, Any]:
        """The tokens of the prompt, if the request asks for tokens."""
        if not self.body.tokens:
            return {}

        return {"prompt_tokens": token_json.prompt_tokens(self.tokenizer, self.prompts[0])}

    async def events(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        """The completion as server-sent events."""
        first = self.prompt_tokens()
        try:
            async for number, chunk in chunks:
                size = self.samples * token_json.entries_in([chunk])
                for choice in await write_out(size, self.choices, number, chunk):
                    yield event({**self.head, "choices": [choice], **first})
                    first = {}

            if self.body.include_usage:
                yield event({**self.head, "choices": [], "usage": self.usage()})

            yield DONE
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]


def token_usage(prompt: int, completion: int) -> dict[str, int]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def joined(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Concatenate the lists of two `logprobs`; those that are None stay None."""
    if before is None:
        return more

    result: dict[str, Any] = {}
    for name, values in more.items():
        result[name] = None if values is None else before[name] + values

    return result
