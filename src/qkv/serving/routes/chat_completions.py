"""POST /v1/chat/completions: the next turn of a talk, in OpenAI's shape, by the template of the
tokenizer.
"""

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
from qkv.serving.http.params import (
    MOST_LISTED,
    beside,
    check_fits,
    check_listed,
    choice_of,
    deadline_of,
    heads_of,
    host_of,
    only,
    opened,
    prepared,
    room_after,
    seed_of,
    together,
)
from qkv.serving.http.schema.openai_schema import MOST_WORDS, ChatRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import ChatReply
from qkv.serving.http.sse import DONE, EventStream, answer, event
from qkv.serving.routes.completions import FINISHED
from qkv.text.chat_template import Message, encode_chat, ends_of_turn
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=documented(ChatReply, also=STREAMED))
async def chat(asked: ChatRequest, request: Request) -> Response:
    """The assistant's next turn."""
    served, model, tokenizer = opened(request, asked.model)
    only(model, asked.model, GPT, "does not talk")
    if tokenizer.chat_template is None:
        raise ValueError(
            f"model: {asked.model} has no chat template, so it was not taught to talk; use completions"
        )

    deadline = deadline_of(request, asked.timeout)
    ids, ends = await prepared(request, served, deadline, None, turns, tokenizer, asked)
    check_fits(model, ids, "messages")
    wanted = asked.max_completion_tokens or asked.max_tokens
    top = (asked.top_logprobs or 0) if asked.logprobs or asked.tokens else None
    listable = MOST_WORDS if top is None else MOST_LISTED // ((asked.n or 1) * (top + 1))
    ask = GenerationRequest(
        prompt=ids,
        length=room_after(model, ids, wanted, listable),
        choice=choice_of(asked),
        ends=tuple(ends),
        stop=asked.stops,
        samples=asked.n or 1,
        seed=seed_of(asked.seed),
        top=top,
        off=heads_of(model, asked.heads_off),
        stream=bool(asked.stream),
        deadline=deadline,
    )

    check_listed([ask])
    said = together(host_of(request), asked.model, [ask])
    telling = ChatStream(asked, tokenizer, ids)
    if asked.stream:
        return EventStream(telling.events(said))

    return await answer(request, telling.whole(said))


def turns(tokenizer: Tokenizer, asked: ChatRequest) -> tuple[list[int], list[int]]:
    """The ids of the talk, and those that end a turn."""
    roles = {"developer": "system"}  # OpenAI's newer word
    messages = [
        Message(role=roles.get(each.role, each.role), content=each.text) for each in asked.messages
    ]
    return encode_chat(tokenizer, messages), ends_of_turn(tokenizer)


class ChatChoiceState:
    """One choice so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text, self.begun = "", False
        self.said: list[TokenLogprob] = []
        self.known = token_json.Running(tokenizer)
        self.reason: Reason | None = None


class ChatStream:
    """Pieces of the engine as choices of a chat."""

    def __init__(self, asked: ChatRequest, tokenizer: Tokenizer, ids: list[int]) -> None:
        self.asked, self.tokenizer, self.ids = asked, tokenizer, ids
        self.told = [ChatChoiceState(tokenizer) for _ in range(asked.n or 1)]
        self.said = 0
        self.head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": asked.model,
        }

    def usage(self) -> dict[str, int]:
        read = len(self.ids)
        return {
            "prompt_tokens": read,
            "completion_tokens": self.said,
            "total_tokens": read + self.said,
        }

    def logprobs(self, said: list[TokenLogprob]) -> dict[str, Any] | None:
        return (
            token_json.of_chat(self.tokenizer, said, self.asked.top_logprobs or 0)
            if self.asked.logprobs
            else None
        )

    def read(self) -> dict[str, Any]:
        return (
            {"prompt_tokens": token_json.prompt_tokens(self.tokenizer, self.ids)}
            if self.asked.tokens
            else {}
        )

    async def whole(self, said: AsyncIterator[tuple[int, OutputChunk]]) -> Response:
        heard = [piece async for _, piece in said]
        return await beside(
            sum(token_json.listed(piece.said) for piece in heard), lambda: Json(self.made(heard))
        )

    def made(self, heard: list[OutputChunk]) -> dict[str, Any]:
        for piece in heard:
            told = self.told[piece.row]
            told.text, told.reason = told.text + piece.text, piece.reason
            told.said += piece.said
            self.said += len(piece.said)

        choices = []
        for index, told in enumerate(self.told):
            assert told.reason is not None
            choices.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "content": told.text, "refusal": None},
                    "logprobs": self.logprobs(told.said),
                    "finish_reason": FINISHED[told.reason],
                    "reason": told.reason,
                    **({"tokens": told.known.read(told.said)} if self.asked.tokens else {}),
                }
            )

        return {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self.usage(),
            **self.read(),
        }

    async def events(self, said: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        head = {**self.head, "object": "chat.completion.chunk"}
        first = self.read()
        try:
            async for _, piece in said:
                told = self.told[piece.row]
                self.said += len(piece.said)
                delta = {} if told.begun else {"role": "assistant"}
                told.begun = True
                choice: dict[str, Any] = {
                    "index": piece.row,
                    "delta": {**delta, "content": piece.text},
                    "logprobs": self.logprobs(piece.said),
                    "finish_reason": None if piece.reason is None else FINISHED[piece.reason],
                    "reason": piece.reason,
                }

                if self.asked.tokens:
                    choice["tokens"] = told.known.read(piece.said)

                yield event({**head, "choices": [choice], **first})
                first = {}

            if self.asked.counted:
                yield event({**head, "choices": [], "usage": self.usage()})

            yield DONE
        finally:
            await said.aclose()  # type: ignore[attr-defined]
