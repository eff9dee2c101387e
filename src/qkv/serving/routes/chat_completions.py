"""POST /v1/chat/completions: the next message of a chat, by the chat template of the tokenizer."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.models import GPT
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    Reason,
    TokenLogprob,
)
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import merged_chunks, write_out
from qkv.serving.http.params import (
    MAX_LOGPROBS,
    check_logprob_entries,
    parse_heads_off,
    request_deadline,
    request_seed,
    sampling_params,
)
from qkv.serving.http.prompt_validation import (
    check_family,
    check_length,
    host_of,
    max_new_tokens,
    prepare,
    ready_model,
)
from qkv.serving.http.schema.openai_schema import MAX_TOKENS, ChatRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import ChatReply
from qkv.serving.http.sse import DONE, EventStream, event, while_connected
from qkv.serving.routes.completions import FINISH_REASONS, token_usage
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["OpenAI"])
ROLES = {"developer": "system"}
"""OpenAI's newer name of a role, and the one that templates know."""


@router.post("/v1/chat/completions", responses=documented(ChatReply, also=STREAMED))
async def chat(body: ChatRequest, request: Request) -> Response:
    """Generate the assistant's next message."""
    entry, model, tokenizer = ready_model(request, body.model)
    check_family(model, body.model, GPT, "does not chat")
    if tokenizer.chat_template is None:
        raise ValueError(
            f"model: {body.model} has no chat template, so it was not trained to chat; "
            "use /v1/completions"
        )

    # Apply the chat template
    deadline = request_deadline(request, body.timeout)
    ids, end_ids = await prepare(request, entry, deadline, None, encode_messages, tokenizer, body)
    check_length(model, ids, "messages")

    # Generate
    generation = generation_request(body, model, ids, end_ids, deadline)
    check_logprob_entries([generation])
    chunks = merged_chunks(host_of(request), body.model, [generation])

    # Answer
    reply = ChatStream(body, tokenizer, ids)
    if body.stream:
        return EventStream(reply.events(chunks))

    return await while_connected(request.receive, reply.whole(chunks))


def encode_messages(tokenizer: Tokenizer, body: ChatRequest) -> tuple[list[int], list[int]]:
    """The ids of a chat, and those that end a message."""
    messages = []
    for message in body.messages:
        role = ROLES.get(message.role, message.role)
        messages.append(Message(role=role, content=message.text))

    return encode_chat(tokenizer, messages), end_of_turn_ids(tokenizer)


def generation_request(
    body: ChatRequest, model: GPT, ids: list[int], end_ids: list[int], deadline: float
) -> GenerationRequest:
    """The engine's request for a chat; null max_tokens is what logprobs and context allow."""
    samples = body.n or 1
    logprobs = None
    default_max_tokens = MAX_TOKENS
    if body.logprobs or body.tokens:
        logprobs = body.top_logprobs or 0
        default_max_tokens = MAX_LOGPROBS // (samples * (logprobs + 1))

    wanted = body.max_completion_tokens or body.max_tokens or default_max_tokens
    return GenerationRequest(
        prompt=ids,
        max_tokens=max_new_tokens(model, ids, wanted),
        sampling=sampling_params(body),
        end_ids=tuple(end_ids),
        stop=body.stops,
        samples=samples,
        seed=request_seed(body.seed),
        logprobs=logprobs,
        heads_off=parse_heads_off(model, body.heads_off),
        stream=bool(body.stream),
        deadline=deadline,
    )


class ChatChoiceState:
    """The output of one choice so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text = ""
        self.started = False
        self.tokens: list[TokenLogprob] = []
        self.token_stream = token_json.TokenStream(tokenizer)
        self.reason: Reason | None = None


class ChatStream:
    """Turns chunks of the engine into the choices of a chat completion."""

    def __init__(self, body: ChatRequest, tokenizer: Tokenizer, ids: list[int]) -> None:
        self.body = body
        self.tokenizer = tokenizer
        self.ids = ids
        self.states = [ChatChoiceState(tokenizer) for _ in range(body.n or 1)]
        self.generated = 0
        self.head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model,
        }

    def usage(self) -> dict[str, int]:
        return token_usage(len(self.ids), self.generated)

    def logprobs(self, tokens: list[TokenLogprob]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None

        return token_json.chat_logprobs(self.tokenizer, tokens, self.body.top_logprobs or 0)

    def prompt_tokens(self) -> dict[str, Any]:
        """The tokens of the prompt, if the request asks for tokens."""
        if not self.body.tokens:
            return {}

        return {"prompt_tokens": token_json.prompt_tokens(self.tokenizer, self.ids)}

    async def whole(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> Response:
        """The chat completion as one response."""
        received = [chunk async for _, chunk in chunks]
        size = token_json.entries_in(received)
        return await write_out(size, lambda: Json(self.completion(received)))

    def completion(self, received: list[OutputChunk]) -> dict[str, Any]:
        for chunk in received:
            state = self.states[chunk.sample]
            state.text += chunk.text
            state.tokens += chunk.tokens
            state.reason = chunk.reason
            self.generated += len(chunk.tokens)

        choices = []
        for index, state in enumerate(self.states):
            assert state.reason is not None
            choice: dict[str, Any] = {
                "index": index,
                "message": {"role": "assistant", "content": state.text, "refusal": None},
                "logprobs": self.logprobs(state.tokens),
                "finish_reason": FINISH_REASONS[state.reason],
                "reason": state.reason,
            }
            if self.body.tokens:
                choice["tokens"] = state.token_stream.scored_tokens(state.tokens)

            choices.append(choice)

        return {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self.usage(),
            **self.prompt_tokens(),
        }

    async def events(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        """The chat completion as server-sent events."""
        head = {**self.head, "object": "chat.completion.chunk"}
        first = self.prompt_tokens()
        try:
            async for _, chunk in chunks:
                self.generated += len(chunk.tokens)
                yield event({**head, "choices": [self.choice(chunk)], **first})
                first = {}

            if self.body.include_usage:
                yield event({**head, "choices": [], "usage": self.usage()})

            yield DONE
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    def choice(self, chunk: OutputChunk) -> dict[str, Any]:
        """A chunk as the choice of an event."""
        state = self.states[chunk.sample]
        delta = {"content": chunk.text}
        if not state.started:
            state.started = True
            delta = {"role": "assistant", **delta}

        finish_reason = None if chunk.reason is None else FINISH_REASONS[chunk.reason]
        choice: dict[str, Any] = {
            "index": chunk.sample,
            "delta": delta,
            "logprobs": self.logprobs(chunk.tokens),
            "finish_reason": finish_reason,
            "reason": chunk.reason,
        }
        if self.body.tokens:
            choice["tokens"] = state.token_stream.scored_tokens(chunk.tokens)

        return choice
