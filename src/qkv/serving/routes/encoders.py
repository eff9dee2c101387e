"""What encoders do: POST /v1/embeddings in OpenAI's shape, /v1/fill and /v1/classify in ours.

Each is done between two steps of the engine, a few texts at a time, so that those who listen to a
stream wait little.
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
from qkv.insight.inspect.frame_tokens import marks_of
from qkv.models import BERT, TaskModel
from qkv.models.heads import pooled
from qkv.models.registry import Model, backbone_of
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.params import beside, check_ids, deadline_of, job, only, opened, prepared
from qkv.serving.http.schema.native_schema import ClassifyRequest, FillRequest
from qkv.serving.http.schema.openai_schema import EmbeddingRequest
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import ClassifyReply, EmbeddingReply, FillReply
from qkv.serving.http.sse import answer
from qkv.text.tokenizer import Tokenizer

router = APIRouter()
AT_ONCE = 16
"""Texts that are read together."""
MOST_CHARACTERS = 200_000
"""In a request to fill or to classify: all that are cut into tokens between two steps."""


@router.post("/v1/embeddings", responses=documented(EmbeddingReply), tags=["OpenAI"])
async def embed(asked: EmbeddingRequest, request: Request) -> Response:
    """A vector for each text, of length 1: the mean over its tokens, unless the model was tuned to
    another.
    """
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, asked.timeout)
    if not isinstance(backbone_of(model), BERT):
        only(model, asked.model, BERT, "makes no vectors of texts")

    width = model.config.width
    if asked.dimensions not in (None, width):
        raise ValueError(f"dimensions: this model's vectors have {width}, no other number")

    size = sum(map(len, asked.inputs))

    def encoded() -> list[list[int]]:
        return [framed(model, tokenizer, each) for each in asked.inputs]

    rows = await prepared(request, served, deadline, size, encoded)

    async def vectors() -> list[Float[Tensor, "E"]]:
        """Those of similar length are read together."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        found: dict[int, Tensor] = {}

        for first in range(0, len(order), AT_ONCE):
            some = order[first : first + AT_ONCE]
            texts = [rows[place] for place in some]
            read = await job(request, asked.model, partial(text_vectors, texts), deadline)
            found |= dict(zip(some, read, strict=True))

        return [found[place] for place in range(len(rows))]

    made = await answer(request, vectors())

    def written_out() -> Response:
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": written(vector, asked.encoding_format == "base64"),
            }
            for index, vector in enumerate(made)
        ]

        count = sum(map(len, rows))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return Json({"object": "list", "model": asked.model, "data": data, "usage": usage})

    return await beside(len(made) * width, written_out)


def framed(model: BERT | TaskModel, tokenizer: Tokenizer, text: str | list[int]) -> list[int]:
    """The ids of a text with the marks around it; ids are taken as they are."""
    if isinstance(text, str):
        ids = marks_of(model, tokenizer)["self"].around(tokenizer.encode(text))
    else:
        ids = text
        check_ids(ids, model.config.vocabulary, "input")

    context = model.config.context
    if not ids:
        raise ValueError("input: it is empty; expected a text")
    if len(ids) > context:
        raise ValueError(
            f"input: {len(ids):,} tokens are more than the model's context of {context:,}; shorten it"
        )

    return ids


def text_vectors(
    rows: list[list[int]], model: Model, tokenizer: Tokenizer
) -> list[Float[Tensor, "E"]]:
    """Normalised to length 1."""
    body = backbone_of(model)
    assert isinstance(body, BERT)
    pooling = model.config.head.pooling if isinstance(model, TaskModel) else "mean"
    longest = max(map(len, rows))
    device = next(model.parameters()).device
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)  # (B, T)
    size = torch.tensor([len(row) for row in rows], device=device)  # (B,)
    padding_mask = torch.arange(longest, device=device) < size.unsqueeze(1)  # (B, T)

    with torch.no_grad(), without_dropout(model):
        hidden = body.hidden(ids, padding_mask=padding_mask)  # (B, T, E)
        places = size - 1 if pooling == "last" else torch.zeros_like(size)
        vectors = pooled(hidden, pooling, places, padding_mask).float()  # (B, E)

    return list(torch.nn.functional.normalize(vectors, dim=-1).cpu())


def written(vector: Float[Tensor, "E"], in_base64: bool) -> list[float] | str:
    if in_base64:
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()

    return vector.tolist()


@router.post("/v1/fill", responses=documented(FillReply), tags=["qkv"])
async def fill_masks(asked: FillRequest, request: Request) -> Response:
    """What stands where the text says [mask]."""
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, asked.timeout)
    only(model, asked.model, BERT, "guesses no masked words")
    if not model.config.mlm_head:
        raise ValueError(
            f"model: {asked.model} is an encoder alone and guesses no words; use embeddings"
        )
    if tokenizer.mask is None:
        raise ValueError(f"model: {asked.model} has no mask token, so it was not taught to guess")

    check_characters([asked.text], "text")
    ids = await prepared(
        request, served, deadline, len(asked.text), masked_ids, tokenizer, asked.text
    )
    if len(ids) > (context := model.config.context):
        raise ValueError(
            f"text: {len(ids):,} tokens are more than the model's context of {context:,}; shorten it"
        )

    def work(model: Any, tokenizer: Tokenizer) -> Any:
        return fill(model, tokenizer, asked.text, top=asked.top)

    found = await answer(request, job(request, asked.model, work, deadline))

    def written_out() -> Response:
        read = [
            {**each, "mask": each["id"] == tokenizer.mask}
            for each in token_json.prompt_tokens(tokenizer, ids)
        ]
        return Json(
            {"tokens": read, "masks": [[guess._asdict() for guess in guesses] for guesses in found]}
        )

    return await beside(len(ids) + len(found) * asked.top, written_out)


def check_characters(texts: Iterable[str], field: str) -> None:
    if (size := sum(map(len, texts))) > MOST_CHARACTERS:
        raise ValueError(
            f"{field}: expected {MOST_CHARACTERS:,} characters or less in all, not {size:,}; send fewer"
        )


@router.post("/v1/classify", responses=documented(ClassifyReply), tags=["qkv"])
async def classify_texts(asked: ClassifyRequest, request: Request) -> Response:
    """A class, a number, a choice or tags, as the model was tuned to say."""
    _, model, _ = opened(request, asked.model)
    only(model, asked.model, TaskModel, "was not taught to answer")
    check_characters(("".join(each) for each in asked.texts), "text")
    deadline = deadline_of(request, asked.timeout)

    async def answers() -> list[Any]:
        found: list[Any] = []
        for first in range(0, len(asked.texts), AT_ONCE):
            some = asked.texts[first : first + AT_ONCE]
            found += await job(request, asked.model, partial(classify, texts=some), deadline)

        return found

    found = await answer(request, answers())

    return Json({"task": model.config.head.task, "answers": [each._asdict() for each in found]})
