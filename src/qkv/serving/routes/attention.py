"""POST /v1/attention: attention weights and predictions, in the format of the `qkv look` page."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.logit_lens import next_tokens
from qkv.insight.inspect.look_data import ATTRIBUTION_MAX_TOKENS, LENS_MAX_TOKENS
from qkv.insight.inspect.model_input import Reading, make_side, read
from qkv.insight.look import Look, longest_side, look
from qkv.insight.render.page import EXACT, blocks, cells, compact, described, opening
from qkv.insight.render.page_parts import described_parts
from qkv.insight.render.page_text import missing_views
from qkv.insight.render.views import ViewChoice
from qkv.insight.render.walk.model_walk_data import model_walk_data
from qkv.insight.walk.walk_effects import predicted_position
from qkv.models.model import Model
from qkv.models.sites import attends, attention_sites
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import job_result
from qkv.serving.http.params import parse_heads_off, request_deadline
from qkv.serving.http.prompt_validation import prepare, prompt_token_ids, ready_model
from qkv.serving.http.schema.native_schema import AttentionRequest, ReadFields
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import AttentionReply
from qkv.serving.http.schema.walk_schema import MAX_ITEMS as WALK_TOKENS
from qkv.serving.http.sse import while_connected
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])
MAX_TOKENS = 1024
MAX_TOKENS_ALL_LAYERS = 512
"""Tokens of a text whose layers are all computed in one job: other requests wait for it."""
MAX_CHARACTERS = 32 * MAX_TOKENS
DEFAULT_TOP = AttentionRequest.model_fields["top"].default
MAX_WEIGHTS = 8_000_000
"""Attention weights in one response: about 10 MB."""


@router.post("/v1/attention", responses=documented(AttentionReply))
async def attention(body: AttentionRequest, request: Request) -> Response:
    """Attention of all layers and heads, next tokens, predictions after each layer, and norms."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    if not attends(model):
        raise ValueError("model: this RNN has no attention")

    heads_off = parse_heads_off(model, body.heads_off)
    sequence = body.sequence
    ids: list[int] | None = None
    if model.predicts == "next" and sequence is not None:
        work = prompt_token_ids
        size = len(sequence)
        ids = await prepare(
            request, entry, deadline, size, work, model, tokenizer, sequence, "text"
        )
    elif isinstance(sequence, list):
        raise ValueError("text: only a GPT takes ids; expected a text")

    def work_inside(model: Any, tokenizer: Tokenizer) -> Look:
        kind = "decoder" if "decoder" in model.stacks else None
        edits = [Edit(layer, head, kind=kind) for layer, head in heads_off]
        # The engine's thread is in inference mode; the norms need gradients.
        with torch.inference_mode(False), torch.enable_grad(), apply_edits(model, edits):
            return look_inside(model, tokenizer, body, ids)

    result = await while_connected(
        request.receive, job_result(request, body.model, work_inside, deadline)
    )

    # Beside the engine's thread: packing takes longer than computing
    predicted = predicted_position(tokenizer, result.reading, None)
    return await asyncio.to_thread(look_response, result, body, predicted)


def look_inside(
    model: Any, tokenizer: Tokenizer, body: AttentionRequest, ids: list[int] | None
) -> Look:
    """What a request asks of a model, about its texts or the given ids."""
    reading = Reading(make_side(tokenizer, ids)) if ids else read_body(model, tokenizer, body)
    check_size(model, reading, body)
    result = look(
        model,
        reading=reading,
        tokenizer=tokenizer,
        name=body.model,
        layers=body.layers,
        lens=body.lens,
        norms=body.norms,
        walks=False,
        attribution=body.attribution,
        model_walk=body.model_walk,
    )
    if result.next is None or body.top == DEFAULT_TOP:
        return result

    guesses = next_tokens(model, tokenizer, reading, top=body.top)
    return dataclasses.replace(result, next=guesses)


def read_body(model: Model, tokenizer: Tokenizer, body: ReadFields) -> Reading:
    """The model's input for the texts of a request."""
    sizes = {
        "text": sum(map(len, body.texts)),
        "source": len(body.source or ""),
        "target": len(body.target or ""),
    }
    for field, size in sizes.items():
        if size > MAX_CHARACTERS:
            raise ValueError(f"{field}: attention is limited to {MAX_TOKENS:,} tokens; shorten it")

    return read(model, tokenizer, *body.texts, source=body.source, target=body.target)


def check_size(model: Model, reading: Reading, body: AttentionRequest) -> None:
    """Raise ValueError for a long text, before a weight per pair of tokens and head is computed."""
    size = longest_side(reading)
    if size > MAX_TOKENS:
        raise ValueError(
            f"text: attention is limited to {MAX_TOKENS:,} tokens, not {size:,}; shorten it"
        )
    if body.layers is None and size > MAX_TOKENS_ALL_LAYERS:
        raise ValueError(
            f"layers: all layers are returned for at most {MAX_TOKENS_ALL_LAYERS} tokens, "
            f"not {size:,}; choose some of them"
        )

    limits = (
        ("lens", body.lens, LENS_MAX_TOKENS),
        ("norms", body.norms, LENS_MAX_TOKENS),
        ("model_walk", body.model_walk, LENS_MAX_TOKENS),
        ("attribution", body.attribution, ATTRIBUTION_MAX_TOKENS),
        ("top", body.top > DEFAULT_TOP, LENS_MAX_TOKENS),
    )
    for field, wanted, most in limits:
        if wanted and size > most:
            raise ValueError(
                f"{field}: limited to texts of {most} tokens, not {size:,}; leave it out"
            )

    check_weights(model, size, body.layers)


def check_weights(model: Model, size: int, layers: list[int] | None) -> None:
    """Raise ValueError if the layers have too many weights for one response."""
    sites = attention_sites(model)
    chosen = max(site.depth for site in sites) if layers is None else len(set(layers))
    weights = 0
    weights_per_layer = 0
    for site in sites:
        weights_per_layer += site.heads * size**2
        weights += site.heads * size**2 * min(chosen, site.depth)

    if weights > MAX_WEIGHTS:
        fitting = max(MAX_WEIGHTS // weights_per_layer, 1)
        raise ValueError(
            f"layers: the heads of {chosen} layers have {weights:,} weights for {size:,} tokens, "
            f"more than {MAX_WEIGHTS:,}; ask for {fitting} at a time"
        )


def walks_to_fetch(result: Look) -> dict[str, Any]:
    """The walks of the page: every head can be fetched from /v1/walk, if the text is short."""
    lacking = missing_views(result)
    if longest_side(result.reading) > WALK_TOKENS:
        lacking["walk"] = f"The text has more than {WALK_TOKENS} tokens: shorten it"
        return {"walk": None, "lacking": lacking}

    del lacking["walk"]
    kinds = {attention.kind: {"heads": None} for attention in result.attention}
    return {"walk": kinds, "lacking": lacking}


def look_response(result: Look, body: AttentionRequest, predicted: int) -> Response:
    """Pack a look as the page of `qkv look` reads it, with the position of the prediction."""
    code: Any = "linear16" if cells(result) <= EXACT else "root8"
    start = opening(result, ViewChoice(kind=body.kind), fetches=True)
    packed = dict(blocks(result, code, str(start.get("kind")), start.get("layer", 0)))

    walk = result.model_walk
    return Json(
        {
            "data": described(result, code)
            | {"start": start, "predicted": predicted}
            | walks_to_fetch(result),
            "blocks": packed,
            "next": None if result.next is None else compact(result.next, result.leading_spaces),
            "lens": None if result.lens is None else compact(result.lens, result.leading_spaces),
            "parts": described_parts(result),
            "model_walk": walk and model_walk_data(walk, result.leading_spaces),
        }
    )
