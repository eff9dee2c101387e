"""POST /v1/translate: translate sentences, with the attention between source and target words."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.data.batches.padding import up_to
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.translate import SIMILAR, in_one_line, room_for, source_ids
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.whole_words import join_words, whole_words
from qkv.models.sites import attends
from qkv.serving.engine.admission import MAX_SEQUENCE
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import ChoiceState, job_result, token_usage
from qkv.serving.http.params import parse_heads_off, request_deadline, request_seed
from qkv.serving.http.prompt_validation import check_can, host_of, prepare, ready_model
from qkv.serving.http.response_chunks import merged_chunks
from qkv.serving.http.schema.native_schema import TranslateRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import TranslateReply
from qkv.serving.http.sse import DONE, EventStream, event, while_connected
from qkv.text.frame_tokens import translation_ends
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])
MAX_SOURCE = 4096
"""Tokens of a source in a model without a context limit, which reads them one by one."""


@router.post("/v1/translate", responses=documented(TranslateReply, also=STREAMED))
async def translate(body: TranslateRequest, request: Request) -> Response:
    """Translate texts, one sentence each."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    check_can(model, body.model, model.has_source, "does not translate")
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "model: its tokenizer has no start or no end token, so it cannot translate"
        )
    if body.alignment and not attends(model):
        raise ValueError("alignment: this RNN has no attention; leave it out")

    size = sum(map(len, body.texts))
    sources = await prepare(
        request, entry, deadline, size, source_ids, [model], tokenizer, body.texts
    )
    longest = max(map(len, sources))
    if longest > MAX_SOURCE:
        raise ValueError(
            f"text: expected sentences of {MAX_SOURCE:,} tokens or fewer, not {longest:,}"
        )

    requests = generation_requests(body, model, tokenizer, sources, deadline)
    chunks = merged_chunks(host_of(request), body.model, requests)
    reply = TranslationStream(body, request, sources, deadline)
    if body.stream:
        return EventStream(reply.events(chunks))

    return Json(await while_connected(request.receive, reply.whole(chunks)))


def generation_requests(
    body: TranslateRequest,
    model: Any,
    tokenizer: Tokenizer,
    sources: list[list[int]],
    deadline: float,
) -> list[GenerationRequest]:
    """The engine's requests, one for each text that is not empty."""
    heads_off = parse_heads_off(model, body.heads_off)
    start, end = translation_ends(tokenizer)
    forbidden = tuple({start} - {end})  # the start is never part of a translation

    requests: list[GenerationRequest] = []
    for source in filter(None, sources):
        wanted = 2 * up_to(len(source), SIMILAR) + SIMILAR
        if body.max_tokens is not None:
            wanted = min(body.max_tokens, MAX_SEQUENCE)

        generation = GenerationRequest(
            prompt=source,
            max_tokens=room_for([model], wanted),
            sampling=SamplingParams(temperature=body.temperature, forbidden=forbidden),
            end_ids=(end,),
            samples=body.n_best,
            seed=request_seed(body.seed),
            beams=body.beams,
            length_penalty=body.length_penalty,
            heads_off=heads_off,
            stream=body.stream,
            deadline=deadline,
        )
        requests.append(generation)

    return requests


class TranslationStream:
    """Turns chunks of the engine into translations."""

    def __init__(
        self, body: TranslateRequest, request: Request, sources: list[list[int]], deadline: float
    ) -> None:
        self.body = body
        self.request = request
        self.sources = sources
        self.deadline = deadline
        self.states: list[list[ChoiceState]] = []
        """Translations of each text."""
        for source in sources:
            self.states.append([ChoiceState() for _ in range(body.n_best if source else 1)])

        pairs = zip(sources, self.states, strict=True)
        self.requested = [states for source, states in pairs if source]
        """Translations of each request."""

    async def whole(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> dict[str, Any]:
        """All translations as one response."""
        async for number, chunk in chunks:
            self.requested[number][chunk.sample].add(chunk)

        return await self.reply()

    async def events(self, chunks: AsyncIterator[tuple[int, OutputChunk]]) -> AsyncIterator[bytes]:
        """The text as it is generated, then the whole response."""
        try:
            async for number, chunk in chunks:
                self.requested[number][chunk.sample].add(chunk)
                yield event({"text": chunk.text})

            yield event(await self.reply())
            yield DONE
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    async def reply(self) -> dict[str, Any]:
        translations: list[list[dict[str, Any]]] = []
        generated = 0
        for states in self.states:
            items = []
            for state in states:
                generated += len(state.token_ids)
                items.append({"text": in_one_line(state.text), "score": finite_score(state)})

            translations.append(items)

        reply: dict[str, Any] = {
            "translations": translations,
            "usage": token_usage(sum(map(len, self.sources)), generated),
        }
        if self.body.alignment:
            reply["alignment"] = []
            for source, states in zip(self.sources, self.states, strict=True):
                target = states[0].token_ids
                work = partial(word_alignment, source, target)
                reply["alignment"].append(
                    await job_result(self.request, self.body.model, work, self.deadline)
                )

        return reply


def finite_score(state: ChoiceState) -> float | None:
    """The score of a translation; None if it has none, or if its search found too few."""
    if state.score is None or not math.isfinite(state.score):
        return None

    return state.score


def word_alignment(
    source: Sequence[int], target: Sequence[int], model: Any, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Attention between whole words; the end of the source counts as a word."""
    source_words = whole_words(tokenizer, source)
    target_words = whole_words(tokenizer, target)
    weights: list[Any] = []
    if source and target:
        start, _ = translation_ends(tokenizer)
        device = next(model.parameters()).device
        source_row = torch.tensor([list(source)], device=device)
        target_row = torch.tensor([list(target)], device=device)
        token_weights = alignment(model, source_row, target_row, start=start)  # (T, S)
        joined = join_words(token_weights.float().cpu(), target_words, source_words)  # (W, X)
        weights = joined.tolist()

    return {
        "source": [word.text or "(end)" for word in source_words],
        "target": [word.text or "(end)" for word in target_words],
        "weights": weights,
    }
