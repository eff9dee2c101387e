"""POST /v1/walk: one head number by number, and the next tokens before and after edits of it."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import Reading, make_side
from qkv.insight.look import longest_side
from qkv.insight.render.walk.walk_data import shortened, walk_data
from qkv.insight.walk.walk_effects import WalkEffects, walk_effects
from qkv.models.sites import attends
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import job_result
from qkv.serving.http.params import parse_heads_off, request_deadline
from qkv.serving.http.prompt_validation import prepare, prompt_token_ids, ready_model
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import WalkReply
from qkv.serving.http.schema.walk_schema import MAX_ITEMS, WalkRequest
from qkv.serving.http.sse import while_connected
from qkv.serving.routes.attention import read_body
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])


@router.post("/v1/walk", responses=documented(WalkReply))
async def walk(body: WalkRequest, request: Request) -> Response:
    """One head from its query to what it writes, with edits, and what they change."""
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

    def walk_through(model: Any, tokenizer: Tokenizer) -> WalkEffects:
        kind = "decoder" if "decoder" in model.stacks else None
        off = [Edit(layer, head, kind=kind) for layer, head in heads_off]
        name = (body.kind, body.layer, body.head)
        with torch.inference_mode(False), apply_edits(model, off):
            reading = (
                Reading(make_side(tokenizer, ids)) if ids else read_body(model, tokenizer, body)
            )
            check_length(reading)
            return walk_effects(
                model, reading, tokenizer, name, body.walk_edits, position=body.position
            )

    result = await while_connected(
        request.receive, job_result(request, body.model, walk_through, deadline)
    )

    # Beside the engine's thread
    return await asyncio.to_thread(walk_response, result)


def check_length(reading: Reading) -> None:
    size = longest_side(reading)
    if size > MAX_ITEMS:
        raise ValueError(f"text: a walk is limited to {MAX_ITEMS} tokens, not {size:,}; shorten it")


def walk_response(result: WalkEffects) -> Response:
    """The walk as the page reads it, and the next tokens before and after."""
    change = result.next
    following = None
    if change is not None:
        following = {
            "position": change.position,
            "tokens": list(map(shortened, change.tokens)),
            "entropy": {"before": change.entropy_before, "after": change.entropy_after},
        }

    return Json({"walk": walk_data(result.walk), "next": following})
