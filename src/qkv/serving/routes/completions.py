"""POST /v1/completions: go on from a prompt, or from several, in OpenAI's shape."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.generation.text import StopStringFilter
from qkv.models import GPT
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk, Reason
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.params import (
    beside,
    check_listed,
    choice_of,
    deadline_of,
    heads_of,
    host_of,
    ids_of,
    only,
    opened,
    prepared,
    room_after,
    seed_of,
    together,
)
from qkv.serving.http.schema.openai_schema import CompletionRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import CompletionReply
from qkv.serving.http.sse import DONE, EventStream, answer, event
from qkv.text.detokenizer import IncrementalDetokenizer
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["OpenAI"])
FINISHED: dict[Reason, str] = {
    "end": "stop", "stop": "stop", "length": "length", "context": "length", "deadline": "length",
}  # fmt: skip
"""Why a text ended, in OpenAI's words; ours stand beside them as `reason`."""


@router.post("/v1/completions", responses=documented(CompletionReply, also=STREAMED))
async def complete(asked: CompletionRequest, request: Request) -> Response:
    """Go on from a prompt."""
    served, model, tokenizer = opened(request, asked.model)
    only(model, asked.model, GPT, "does not go on from a prompt")
    deadline, off = deadline_of(request, asked.timeout), heads_of(model, asked.heads_off)
    size = sum(map(len, asked.prompts))

    def encoded() -> list[list[int]]:
        return [ids_of(model, tokenizer, prompt) for prompt in asked.prompts]

    prompts = await prepared(request, served, deadline, size, encoded)
    top = asked.logprobs if asked.logprobs is not None else 0 if asked.tokens else None
    asks = [
        GenerationRequest(
            prompt=ids,
            length=room_after(model, ids, asked.max_tokens, 16),
            choice=choice_of(asked),
            ends=() if tokenizer.end is None else (tokenizer.end,),
            stop=asked.stops,
            samples=asked.n or 1,
            seed=seed_of(asked.seed),
            top=top,
            prompt_top=asked.logprobs if asked.echo else None,
            off=off,
            stream=bool(asked.stream),
            deadline=deadline,
        )
        for ids in prompts
    ]

    check_listed(asks)
    size = sum(map(len, prompts)) if asked.echo else 0
    telling = await prepared(
        request, served, deadline, size, CompletionStream, asked, tokenizer, prompts
    )
    said = together(host_of(request), asked.model, asks)
    if asked.stream:
        return EventStream(telling.events(said))

    return await answer(request, telling.whole(said))


class CompletionChoiceState:
    """One choice: what was said of it so far."""

    def __init__(
        self, tokenizer: Tokenizer, echo: str, prompt: IncrementalDetokenizer, stop: tuple[str, ...]
    ) -> None:
        self.echo, self.text = echo, ""
        self.aloud = StopStringFilter(tokenizer, stop)
        """Goes on where the prompt ended. How a word is joined depends on the one before it, so
        what comes after an echo may begin otherwise than a text of its own: with a space, or with
        the rest of a character."""
        self.aloud.stream.before, self.aloud.stream.waiting = (
            list(prompt.before),
            list(prompt.waiting),
        )
        self.aloud.stream.characters.setstate(prompt.characters.getstate())
        self.places = token_json.Running(tokenizer)
        """Where each token of the text begins, echo and all."""
        self.known = token_json.Running(tokenizer)
        self.tokens: list[dict[str, Any]] = []
        self.logprobs: dict[str, Any] | None = None
        self.reason: Reason | None = None

    def after_echo(self, piece: OutputChunk) -> str:
        if self.aloud.stopped:
            return ""

        self.aloud.hear_all(each.id for each in piece.said)
        if piece.reason is not None:
            self.aloud.close()

        return self.aloud.take()


class CompletionStream:
    """Pieces of the engine as choices of a completion."""

    def __init__(
        self, asked: CompletionRequest, tokenizer: Tokenizer, prompts: list[list[int]]
    ) -> None:
        self.asked, self.tokenizer, self.prompts = asked, tokenizer, prompts
        self.n = asked.n or 1
        self.told: list[CompletionChoiceState] = []

        for ids in prompts:
            prompt = IncrementalDetokenizer(tokenizer)
            echo = prompt.add_all(ids) if asked.echo else ""
            self.told += [
                CompletionChoiceState(tokenizer, echo, prompt, asked.stops) for _ in range(self.n)
            ]

        self.said = 0
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model,
        }

    def usage(self) -> dict[str, int]:
        read = sum(map(len, self.prompts))
        return {
            "prompt_tokens": read,
            "completion_tokens": self.said,
            "total_tokens": read + self.said,
        }

    def choices(self, number: int, piece: OutputChunk) -> list[dict[str, Any]]:
        """What a piece of a request adds to its choices: the prompt, said first, to all of them."""
        prompt = self.is_prompt(number * self.n)
        rows = range(self.n) if prompt else [piece.row]
        self.said += 0 if prompt else len(piece.said)

        return [self.choice(number * self.n + row, piece) for row in rows]

    def is_prompt(self, index: int) -> bool:
        """Whether what comes next of a choice is what the model thinks of its prompt."""
        return (
            bool(self.asked.echo)
            and self.asked.logprobs is not None
            and self.told[index].logprobs is None
        )

    def choice(self, index: int, piece: OutputChunk) -> dict[str, Any]:
        told, asked = self.told[index], self.asked
        text = told.after_echo(piece) if asked.echo and not self.is_prompt(index) else piece.text
        text, told.echo = told.echo + text, ""
        found: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
            "reason": None,
        }

        if asked.logprobs is not None:
            found["logprobs"] = token_json.of_completion(
                self.tokenizer, piece.said, asked.logprobs, told.places
            )
            told.logprobs = joined(told.logprobs, found["logprobs"])

        if asked.tokens:
            found["tokens"] = told.known.read(piece.said)
            told.tokens += found["tokens"]

        told.text += text
        if piece.reason is not None:
            told.reason = piece.reason
            found |= {"finish_reason": FINISHED[piece.reason], "reason": piece.reason}

        return found

    async def whole(self, said: AsyncIterator[tuple[int, OutputChunk]]) -> Response:
        """To write out many alternatives takes a while."""
        heard = [each async for each in said]
        return await beside(
            sum(token_json.listed(piece.said) for _, piece in heard), lambda: Json(self.made(heard))
        )

    def made(self, heard: list[tuple[int, OutputChunk]]) -> dict[str, Any]:
        for number, piece in heard:
            self.choices(number, piece)

        choices = []
        for index, told in enumerate(self.told):
            assert told.reason is not None
            choices.append(
                {
                    "index": index,
                    "text": told.text,
                    "logprobs": told.logprobs,
                    "finish_reason": FINISHED[told.reason],
                    "reason": told.reason,
                    **({"tokens": told.tokens} if self.asked.tokens else {}),
                }
            )

        return {**self.head, "choices": choices, "usage": self.usage(), **self.read()}

    def read(self) -> dict[str, Any]:
        return (
            {"prompt_tokens": token_json.prompt_tokens(self.tokenizer, self.prompts[0])}
            if self.asked.tokens
            else {}
        )

    async def events(self, said: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        first = self.read()
        try:
            async for number, piece in said:
                for choice in await beside(
                    self.n * token_json.listed(piece.said), self.choices, number, piece
                ):
                    yield event({**self.head, "choices": [choice], **first})
                    first = {}

            if self.asked.counted:
                yield event({**self.head, "choices": [], "usage": self.usage()})

            yield DONE
        finally:
            await said.aclose()  # type: ignore[attr-defined]


def joined(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Lists go on where they ended; what is not asked for stays None."""
    if before is None:
        return more

    return {name: None if more[name] is None else before[name] + more[name] for name in before}
