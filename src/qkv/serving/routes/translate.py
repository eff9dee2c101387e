"""POST /v1/translate: sentences through an encoder and a decoder, with which source word each
target word looked at.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.search_loop import rounded
from qkv.generation.translate import SIMILAR, in_one_line, room_for, source_ids
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.whole_words import join_words, words_of
from qkv.models import RNN, Transformer
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk
from qkv.serving.http.errors import Json
from qkv.serving.http.params import (
    deadline_of,
    heads_of,
    host_of,
    job,
    only,
    opened,
    prepared,
    seed_of,
    together,
)
from qkv.serving.http.schema.native_schema import TranslateRequest
from qkv.serving.http.schema.openai_schema import UNENDING
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import TranslateReply
from qkv.serving.http.sse import DONE, EventStream, answer, event
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])
MOST_SOURCE = 4096
"""Tokens of a source in a model whose context has no end: it reads them one after another."""


@router.post("/v1/translate", responses=documented(TranslateReply, also=STREAMED))
async def translate(asked: TranslateRequest, request: Request) -> Response:
    """Translate texts, each one sentence."""
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, asked.timeout)
    only(model, asked.model, (Transformer, RNN), "does not translate")
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "model: a translator needs a start and an end token, and this one's tokenizer lacks them"
        )
    if asked.alignment and isinstance(model, RNN) and model.config.attention == "none":
        raise ValueError(
            "alignment: this RNN has no attention, so none of its words looked at any other"
        )

    size = sum(map(len, asked.texts))
    sources = await prepared(
        request, served, deadline, size, source_ids, [model], tokenizer, asked.texts
    )
    if max(map(len, sources)) > MOST_SOURCE:
        raise ValueError(
            f"text: one of {max(map(len, sources)):,} tokens is no sentence; expected {MOST_SOURCE:,} or less"
        )

    translating = TranslationStream(asked, request, model, tokenizer, sources, deadline)
    if asked.stream:
        return EventStream(translating.events())

    return Json(await answer(request, translating.whole()))


class TranslationState:
    """One translation so far."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.score: float | None = None


class TranslationStream:
    def __init__(
        self,
        asked: TranslateRequest,
        request: Request,
        model: Any,
        tokenizer: Tokenizer,
        sources: list[list[int]],
        deadline: float,
    ) -> None:
        self.asked, self.request, self.model, self.tokenizer, self.sources = (
            asked,
            request,
            model,
            tokenizer,
            sources,
        )

        self.filled = [place for place, source in enumerate(sources) if source]
        """An empty text has an empty translation, of which nobody need be asked."""
        self.told = [
            [TranslationState() for _ in range(asked.n_best if source else 1)] for source in sources
        ]
        self.deadline = deadline
        off = heads_of(model, asked.heads_off)
        self.asks = [self.ask(sources[place], off) for place in self.filled]

    def ask(self, source: list[int], off: tuple[tuple[int, int], ...]) -> GenerationRequest:
        asked = self.asked
        room = room_for([self.model], 2 * rounded(len(source), SIMILAR) + SIMILAR)
        assert self.tokenizer.end is not None
        return GenerationRequest(
            prompt=source,
            length=room
            if asked.max_tokens is None
            else room_for([self.model], min(asked.max_tokens, UNENDING)),
            choice=SamplingParams(temperature=asked.temperature, forbidden=self.never()),
            ends=(self.tokenizer.end,),
            samples=asked.n_best,
            seed=seed_of(asked.seed),
            beams=asked.beams,
            length_penalty=asked.length_penalty,
            off=off,
            stream=asked.stream,
            deadline=self.deadline,
        )

    def never(self) -> tuple[int, ...]:
        """A start that is no word, such as Marian's padding, is not said."""
        start, end = self.tokenizer.start, self.tokenizer.end
        return () if start is None or start == end else (start,)

    async def pieces(self) -> AsyncIterator[OutputChunk]:
        if not self.asks:
            return

        async for number, piece in together(host_of(self.request), self.asked.model, self.asks):
            told = self.told[self.filled[number]][piece.row]
            told.text += piece.text
            told.ids += [each.id for each in piece.said]
            if piece.score is not None and math.isfinite(piece.score):
                told.score = piece.score

            yield piece

    async def whole(self) -> dict[str, Any]:
        async for _ in self.pieces():
            pass

        return await self.found()

    async def events(self) -> AsyncIterator[bytes]:
        """The text as it comes, then everything."""
        pieces = self.pieces()
        try:
            async for piece in pieces:
                yield event({"text": piece.text})

            yield event(await self.found())
            yield DONE
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]

    async def found(self) -> dict[str, Any]:
        read, said = (
            sum(map(len, self.sources)),
            sum(len(each.ids) for rows in self.told for each in rows),
        )
        reply: dict[str, Any] = {
            "translations": [
                [{"text": in_one_line(each.text), "score": each.score} for each in rows]
                for rows in self.told
            ],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": said,
                "total_tokens": read + said,
            },
        }

        if self.asked.alignment:
            pairs = [
                (source, rows[0].ids) for source, rows in zip(self.sources, self.told, strict=True)
            ]
            reply["alignment"] = [await self.aligned(*pair) for pair in pairs]

        return reply

    async def aligned(self, source: list[int], said: list[int]) -> dict[str, Any]:
        def work(model: Any, tokenizer: Tokenizer) -> dict[str, Any]:
            return looked_at(model, tokenizer, source, said)

        return await job(self.request, self.asked.model, work, self.deadline)


def looked_at(
    model: Transformer | RNN, tokenizer: Tokenizer, source: Sequence[int], said: Sequence[int]
) -> dict[str, Any]:
    """Between whole words; the end of the source is a word, too."""
    sources, targets = words_of(tokenizer, source), words_of(tokenizer, said)
    weights: list[Any] = []
    if source and said:
        device = next(model.parameters()).device
        assert tokenizer.start is not None
        rows = (torch.tensor([list(ids)], device=device) for ids in (source, said))
        found = alignment(model, *rows, start=tokenizer.start).float().cpu()  # (T, S)
        weights = join_words(found, targets, sources).tolist()  # (W, X)

    return {
        "source": [word.text or "(end)" for word in sources],
        "target": [word.text or "(end)" for word in targets],
        "weights": weights,
    }
