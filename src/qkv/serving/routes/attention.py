"""POST /v1/attention: a look inside while a model reads, as the drawing code of `qkv look` takes
it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.insight.inspect.attention_edits import Edit, edited
from qkv.insight.inspect.capture import attention_sites
from qkv.insight.inspect.model_input import Reading, read, side
from qkv.insight.look import SHORT, Look, longest_of, look
from qkv.insight.render.page import EXACT, blocks, cells, compact, described, opening
from qkv.models import GPT, RNN, Transformer
from qkv.models.registry import Model
from qkv.serving.http.errors import Json
from qkv.serving.http.params import deadline_of, heads_of, ids_of, job, opened, prepared
from qkv.serving.http.schema.native_schema import AttentionRequest
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import AttentionReply
from qkv.serving.http.sse import answer
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])
MOST_TOKENS = 1024
MOST_WHOLE = 512
"""Tokens of a text all of whose layers are looked at in one go: nobody else is answered meanwhile.
"""
MOST_CHARACTERS = 32 * MOST_TOKENS
MOST_WEIGHTS = 8_000_000
"""Of the layers that come in full: some 10 MB on the wire."""


@router.post("/v1/attention", responses=documented(AttentionReply))
async def attention(asked: AttentionRequest, request: Request) -> Response:
    """Attention of every layer and head, what comes next, the prediction after each layer, the
    norms.
    """
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, asked.timeout)
    if isinstance(model, RNN) and model.config.attention == "none":
        raise ValueError(
            "model: this RNN has no attention, so none of its words looks at any other"
        )

    off = heads_of(model, asked.heads_off)
    ids: list[int] | None = None
    if isinstance(model, GPT) and asked.sequence is not None:
        ids = await prepared(
            request,
            served,
            deadline,
            len(asked.sequence),
            ids_of,
            model,
            tokenizer,
            asked.sequence,
            "text",
        )
    elif isinstance(asked.sequence, list):
        raise ValueError("text: only a GPT takes ids; expected a text")

    def work(model: Any, tokenizer: Tokenizer) -> Look:
        kind = "decoder" if isinstance(model, Transformer) else None
        edits = [Edit(layer, head, kind=kind) for layer, head in off]
        # The engine's thread keeps no gradients; the norms need them.
        with torch.inference_mode(False), torch.enable_grad(), edited(model, edits):
            reading = Reading(side(tokenizer, ids)) if ids else read_asked(model, tokenizer, asked)
            check_size(model, reading, asked)
            return look(
                model, reading=reading, tokenizer=tokenizer, name=asked.model, layers=asked.layers,
                lens_too=asked.lens, norms_too=asked.norms,
            )  # fmt: skip

    seen = await answer(request, job(request, asked.model, work, deadline))

    return await asyncio.to_thread(packed_look, seen, asked)


def read_asked(model: Model, tokenizer: Tokenizer, asked: AttentionRequest) -> Reading:
    for field, size in (
        ("text", sum(map(len, asked.texts))), ("source", len(asked.source or "")), ("target", len(asked.target or "")),
    ):  # fmt: skip
        if size > MOST_CHARACTERS:
            raise ValueError(
                f"{field}: attention is shown of at most {MOST_TOKENS:,} tokens; shorten it"
            )

    return read(model, tokenizer, *asked.texts, source=asked.source, target=asked.target)


def check_size(model: Model, reading: Reading, asked: AttentionRequest) -> None:
    """Every pair of tokens has a weight in every head: a long text is refused before any is made."""
    size = longest_of(reading)
    if size > MOST_TOKENS:
        raise ValueError(
            f"text: attention is shown of at most {MOST_TOKENS:,} tokens, not {size:,}; shorten it"
        )
    if asked.layers is None and size > MOST_WHOLE:
        raise ValueError(
            f"layers: all of them are shown of at most {MOST_WHOLE} tokens, not {size:,}; ask for some of them"
        )

    for field, wanted in (("lens", asked.lens), ("norms", asked.norms)):
        if wanted and size > SHORT:
            raise ValueError(
                f"{field}: made for texts of up to {SHORT} tokens, not {size:,}; leave it out"
            )

    each = [place.heads * size**2 for place in attention_sites(model)]
    depths = [place.depth for place in attention_sites(model)]
    chosen = max(depths) if asked.layers is None else len(set(asked.layers))
    weights = sum(
        of_layer * min(chosen, depth) for of_layer, depth in zip(each, depths, strict=True)
    )
    if weights > MOST_WEIGHTS:
        fit = max(MOST_WEIGHTS // sum(each), 1)
        raise ValueError(
            f"layers: the heads of {chosen} layers have {weights:,} weights for {size:,} tokens, more than "
            f"{MOST_WEIGHTS:,}; ask for {fit} at a time"
        )


def packed_look(seen: Look, asked: AttentionRequest) -> Response:
    """Beside the engine's thread: packing takes longer than looking."""
    code: Any = "linear16" if cells(seen) <= EXACT else "root8"
    start = opening(seen, None, asked.kind, None, None, False)
    found = dict(blocks(seen, code, str(start.get("kind")), start.get("layer", 0)))

    return Json(
        {
            "data": described(seen, code) | {"start": start},
            "blocks": found,
            "next": None if seen.next is None else compact(seen.next),
            "lens": None if seen.lens is None else compact(seen.lens),
        }
    )
