"""POST /v1/effects: what heads at another strength, or steering, change in the predictions.

The text is read twice, without and with the change. The continuations are made of jobs of a few
tokens each, so that other requests wait for one of these at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.generation.decode_loop import DecodeLoop
from qkv.generation.generate import context_limit, without_dropout
from qkv.generation.generation_batch import GeneratedToken, GenerationBatch
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.stop import as_ends
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.model_input import Reading, make_side
from qkv.insight.intervene.edit_effects import EditEffects, apply_changes, edit_effects
from qkv.insight.intervene.steering import Steering, steering_direction
from qkv.insight.render.walk.walk_data import finite
from qkv.models.model import Model
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import job_result, write_out
from qkv.serving.http.params import parse_heads_off, request_deadline
from qkv.serving.http.prompt_validation import check_can, prepare, prompt_token_ids, ready_model
from qkv.serving.http.schema.effects_schema import EffectsReply, EffectsRequest, SteeringFields
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.sse import while_connected
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])
MAX_TOKENS = 512
MAX_CHARACTERS = 32 * MAX_TOKENS
TOKENS_PER_JOB = 4
STEERING_FIELDS = {"plus": "to", "minus": "from", "layer": "layer"}
"""The fields of `steering` by the arguments of `steering_direction`."""


@router.post("/v1/effects", responses=documented(EffectsReply))
async def effects(body: EffectsRequest, request: Request) -> Response:
    """Predictions before and after a change of heads, or steering, at each token and onwards."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    check_can(model, body.model, model.predicts == "next", "does not continue a text")
    edits = [Edit(*pair, body.strength) for pair in parse_heads_off(model, body.heads)]

    # Tokenize
    size = len(body.text)
    if isinstance(body.text, str) and size > MAX_CHARACTERS:
        raise ValueError(f"text: effects are limited to {MAX_TOKENS} tokens; shorten it")

    work = prompt_token_ids
    ids = await prepare(request, entry, deadline, size, work, model, tokenizer, body.text, "text")
    if len(ids) > MAX_TOKENS:
        raise ValueError(
            f"text: effects are limited to {MAX_TOKENS} tokens, not {len(ids):,}; shorten it"
        )

    # Measure, then continue both texts
    def measure(model: Any, tokenizer: Tokenizer) -> EditEffects:
        steering = None
        if body.steering is not None:
            steering = steering_of(model, tokenizer, body.steering)

        reading = Reading(make_side(tokenizer, ids))
        return edit_effects(model, tokenizer, reading, edits, top=1, length=0, steering=steering)

    async def run_jobs() -> tuple[EditEffects, list[list[int]]]:
        effect = await job_result(request, body.model, measure, deadline)
        texts: list[list[int]] = []
        if body.length:
            for changes in (None, effect):
                text = GreedyText(ids, body.length, changes)
                while not text.ended:
                    await job_result(request, body.model, text.advance, deadline)

                texts.append(text.new_ids)

        return effect, texts

    effect, texts = await while_connected(request.receive, run_jobs())

    return await write_out(
        len(ids) * 2, lambda: Json(effects_reply(tokenizer, effect, texts, body.top))
    )


def steering_of(model: Model, tokenizer: Tokenizer, fields: SteeringFields) -> Steering:
    """The direction of a request's prompts; errors name the fields of the request."""
    try:
        direction = steering_direction(model, tokenizer, fields.to, fields.away, fields.layer)
    except ValueError as error:
        argument, _, message = str(error).partition(": ")
        if argument not in STEERING_FIELDS:
            raise

        raise ValueError(f"steering: {message} (at {STEERING_FIELDS[argument]})") from None

    return Steering(fields.layer, direction, fields.strength)


class GreedyText:
    """The greedy continuation of a text, a few tokens at a time, with or without changes.

    Its KV cache stays between two calls of `advance`; the hooks of the changes do not.
    """

    def __init__(self, ids: Sequence[int], length: int, changes: EditEffects | None) -> None:
        self.ids = ids
        self.length = length
        self.changes = changes
        self.tokens: Iterator[GeneratedToken] | None = None
        self.new_ids: list[int] = []
        self.ended = False

    def advance(self, model: Any, tokenizer: Tokenizer) -> None:
        """Add the next tokens; a job of the engine."""
        if self.tokens is None:
            self.tokens = self.stream(model, tokenizer)

        changed: Any = nullcontext()
        if self.changes is not None:
            changed = apply_changes(model, self.changes.edits, self.changes.steering)

        with torch.no_grad(), without_dropout(model), changed:
            for token in islice(self.tokens, TOKENS_PER_JOB):
                if token.id is not None:
                    self.new_ids.append(token.id)

                self.ended = token.reason is not None

    def stream(self, model: Any, tokenizer: Tokenizer) -> Iterator[GeneratedToken]:
        """The tokens by the plain decode loop: the buffers of a CUDA graph are not its own."""
        batch = GenerationBatch(
            sequences=[list(self.ids)],
            rows=[0],
            uniforms=torch.ones(1, self.length),  # no token is drawn
            sampling_params=SamplingParams(temperature=0),
            ends=as_ends(tokenizer.end),
            limit=context_limit(model, "refuse"),
        )
        for rows, tokens in DecodeLoop(model, model.start, batch).steps():
            yield from batch.add_step(rows, tokens)


def effects_reply(
    tokenizer: Tokenizer, effect: EditEffects, texts: Sequence[Sequence[int]], top: int
) -> dict[str, Any]:
    """The reply in JSON."""
    assert effect.logprobs_before is not None
    assert effect.logprobs_after is not None
    tokens = token_json.prompt_tokens(tokenizer, effect.reading.text.ids)
    before = [None, *effect.logprobs_before.tolist()]
    after = [None, *effect.logprobs_after.tolist()]
    moved = effect.moved.tolist()
    for position, token in enumerate(tokens):
        token["before"] = token_json.finite(before[position])
        token["after"] = token_json.finite(after[position])
        token["kl"] = moved[position]

    change = None
    if len(tokens) > 1:
        change = finite(float((effect.logprobs_after - effect.logprobs_before).sum()))

    listed, rest = next_changes(tokenizer, effect, top)
    both = None
    if texts:
        both = {
            "before": token_json.prompt_tokens(tokenizer, texts[0]),
            "after": token_json.prompt_tokens(tokenizer, texts[1]),
        }

    return {
        "tokens": tokens,
        "next": listed,
        "rest": rest,
        "kl": moved[-1],
        "change": change,
        "texts": both,
    }


def next_changes(
    tokenizer: Tokenizer, effect: EditEffects, top: int
) -> tuple[list[dict[str, Any]], list[float]]:
    """The likeliest next tokens of both sides with both probabilities, and those of the rest."""
    assert effect.next_before is not None
    assert effect.next_after is not None
    before = effect.next_before
    after = effect.next_after
    count = min(top, len(before))
    best = {*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()}
    order = sorted(best, key=lambda id: (-max(float(before[id]), float(after[id])), id))

    listed = []
    for id in order:
        token = token_json.named_token(tokenizer, id, token_json.token_text(tokenizer, id))
        listed.append({**token, "before": float(before[id]), "after": float(after[id])})

    rest = []
    for probability in (before, after):
        rest.append(max(0.0, 1 - float(probability[order].sum())))

    return listed, rest
