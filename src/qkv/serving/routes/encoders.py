"""Routes of encoders: POST /v1/embeddings in OpenAI's format, /v1/fill and /v1/classify in qkv's.

Each runs as jobs between two steps of the engine, a few texts at a time, so that running streams
are hardly delayed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from fastapi import APIRouter, Request
from jaxtyping import Float
from starlette.responses import Response
from torch import Tensor

from qkv.generation.classify import classify
from qkv.generation.fill import fill, masked_ids
from qkv.generation.generate import without_dropout
from qkv.insight.attribute.answer_attribution import answer_contributions
from qkv.insight.inspect.model_input import frame_tokens
from qkv.models.heads import pooled
from qkv.models.model import Model, backbone_of
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.serving.engine.admission import check_prompt
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.output_stream import job_result, write_out
from qkv.serving.http.params import request_deadline
from qkv.serving.http.prompt_validation import check_can, prepare, ready_model
from qkv.serving.http.schema.native_schema import ClassifyRequest, FillRequest
from qkv.serving.http.schema.openai_schema import EmbeddingRequest
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import ClassifyReply, EmbeddingReply, FillReply
from qkv.serving.http.sse import while_connected
from qkv.text.tokenizer import Tokenizer

router = APIRouter()
BATCH_SIZE = 16
"""Texts per job."""
MAX_CHARACTERS = 200_000
"""Characters of a fill or classify request, which are tokenized between two steps."""
MAX_EXPLAINED = 8
"""Texts whose answers are explained: each needs a backward pass."""


@router.post("/v1/embeddings", responses=documented(EmbeddingReply), tags=["OpenAI"])
async def embed(body: EmbeddingRequest, request: Request) -> Response:
    """Embed texts as vectors of length 1: the mean over the tokens, or the model's own pooling."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    is_encoder = not (model.is_causal or model.has_source)
    check_can(model, body.model, is_encoder, "makes no vectors of texts")
    width = model.config.width
    if body.dimensions not in (None, width):
        raise ValueError(f"dimensions: expected {width}, the model's width, or null")

    # Tokenize
    def encode() -> list[list[int]]:
        return [framed_ids(model, tokenizer, text) for text in body.inputs]

    rows = await prepare(request, entry, deadline, sum(map(len, body.inputs)), encode)

    # Embed texts of similar length together
    async def embed_all() -> dict[int, Float[Tensor, "E"]]:
        vectors: dict[int, Tensor] = {}
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for first in range(0, len(order), BATCH_SIZE):
            indices = order[first : first + BATCH_SIZE]
            work = partial(text_vectors, [rows[index] for index in indices])
            batch = await job_result(request, body.model, work, deadline)
            vectors |= dict(zip(indices, batch, strict=True))

        return vectors

    vectors = await while_connected(request.receive, embed_all())

    # Answer
    def reply() -> Response:
        data = []
        for index in range(len(rows)):
            embedding = encoded_vector(vectors[index], body.encoding_format == "base64")
            data.append({"object": "embedding", "index": index, "embedding": embedding})

        count = sum(map(len, rows))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return Json({"object": "list", "model": body.model, "data": data, "usage": usage})

    return await write_out(len(rows) * width, reply)


def framed_ids(model: Model, tokenizer: Tokenizer, text: str | list[int]) -> list[int]:
    """The ids of a text with the special tokens around it; ids are taken as they are."""
    if isinstance(text, str):
        ids = frame_tokens(model, tokenizer)["self"].around(tokenizer.encode(text))
    else:
        ids = text

    if not ids:
        raise ValueError("input: it is empty; expected a text")

    check_prompt(model, ids, "input")
    return ids


def text_vectors(
    rows: list[list[int]], model: Model, tokenizer: Tokenizer
) -> list[Float[Tensor, "E"]]:
    """One vector of length 1 per text."""
    backbone = backbone_of(model)
    pooling = "mean" if model.task is None else model.task.pooling
    device = next(model.parameters()).device

    # Pad
    lengths = list(map(len, rows))
    longest = max(lengths)
    padded = [row + [0] * (longest - len(row)) for row in rows]
    ids = torch.tensor(padded, device=device)  # (B, T)
    size = torch.tensor(lengths, device=device)  # (B,)
    padding_mask = torch.arange(longest, device=device) < size.unsqueeze(1)  # (B, T)

    with torch.no_grad(), quantized_activations(), without_dropout(model):
        hidden = backbone.hidden(ids, padding_mask=padding_mask)  # (B, T, E)
        positions = size - 1 if pooling == "last" else torch.zeros_like(size)
        vectors = pooled(hidden, pooling, positions, padding_mask).float()  # (B, E)

    return list(torch.nn.functional.normalize(vectors, dim=-1).cpu())


def encoded_vector(vector: Float[Tensor, "E"], in_base64: bool) -> list[float] | str:
    """A vector as numbers, or as little-endian float32 in base64."""
    if in_base64:
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()

    return vector.tolist()


@router.post("/v1/fill", responses=documented(FillReply), tags=["qkv"])
async def fill_masks(body: FillRequest, request: Request) -> Response:
    """Predict the masked tokens of a text."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    is_encoder = not (model.is_causal or model.has_source or model.task)
    check_can(model, body.model, is_encoder, "does not predict masked tokens")
    if model.predicts != "masked":
        raise ValueError(
            f"model: {body.model} has no masked-word head, so it cannot fill masks; "
            "use /v1/embeddings"
        )
    if tokenizer.mask is None:
        raise ValueError(f"model: {body.model} has no mask token, so it cannot fill masks")

    check_characters([body.text], "text")
    size = len(body.text)
    ids = await prepare(request, entry, deadline, size, masked_ids, tokenizer, body.text)
    check_prompt(model, ids, "text")

    def work(model: Any, tokenizer: Tokenizer) -> Any:
        return fill(model, tokenizer, body.text, top=body.top)

    masks = await while_connected(request.receive, job_result(request, body.model, work, deadline))

    def reply() -> Response:
        tokens = []
        for token in token_json.prompt_tokens(tokenizer, ids):
            tokens.append({**token, "mask": token["id"] == tokenizer.mask})

        candidates = [[candidate._asdict() for candidate in mask] for mask in masks]
        return Json({"tokens": tokens, "masks": candidates})

    return await write_out(len(ids) + len(masks) * body.top, reply)


def check_characters(texts: Iterable[str], field: str) -> None:
    """Raise ValueError if all texts together are too long."""
    size = sum(map(len, texts))
    if size > MAX_CHARACTERS:
        raise ValueError(
            f"{field}: expected {MAX_CHARACTERS:,} characters or fewer in total, not {size:,}; "
            "send fewer"
        )


@router.post("/v1/classify", responses=documented(ClassifyReply), tags=["qkv"])
async def classify_texts(body: ClassifyRequest, request: Request) -> Response:
    """Apply the task that the model was fine-tuned for: a class, a number, a choice or tags."""
    _, model, _ = ready_model(request, body.model)
    check_can(model, body.model, model.task is not None, "is not fine-tuned for a task")
    check_characters(("".join(text) for text in body.texts), "text")
    if body.explain and len(body.texts) > MAX_EXPLAINED:
        raise ValueError(
            f"explain: expected {MAX_EXPLAINED} texts or fewer, not {len(body.texts)}; send fewer"
        )

    deadline = request_deadline(request, body.timeout)

    async def classify_all() -> list[Any]:
        results: list[Any] = []
        for first in range(0, len(body.texts), BATCH_SIZE):
            work = partial(classify, texts=body.texts[first : first + BATCH_SIZE])
            results += await job_result(request, body.model, work, deadline)

        return results

    async def explain_all() -> list[Any]:
        if not body.explain:
            return []

        explanations = []
        for text in body.texts:
            work = partial(explanation_of, text=text)
            explanations.append(await job_result(request, body.model, work, deadline))

        return explanations

    async def answer_all() -> tuple[list[Any], list[Any]]:
        return await classify_all(), await explain_all()

    results, explanations = await while_connected(request.receive, answer_all())
    answers = [result._asdict() for result in results]
    for answer, explanation in zip(answers, explanations, strict=False):
        answer["explanation"] = explanation

    return Json({"task": model.config.head.task, "answers": answers})


def explanation_of(model: Any, tokenizer: Tokenizer, text: str | list[str]) -> dict[str, Any]:
    """What each token of a text contributes to the answer."""
    # The engine's thread is in inference mode; gradients need another.
    with torch.inference_mode(False), torch.enable_grad():
        result = answer_contributions(model, tokenizer, text)

    return {
        "tokens": token_json.prompt_tokens(tokenizer, result.ids),
        "contributions": result.contributions.tolist(),
        "shares": result.shares.tolist(),
    }
