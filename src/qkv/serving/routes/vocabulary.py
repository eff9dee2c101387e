"""POST /v1/next, the distribution of the next token; and /v1/tokenize, a text as tokens."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.serving.engine.admission import check_ids
from qkv.serving.engine.generation_request import GenerationRequest, TokenLogprob
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.params import parse_heads_off, request_deadline, sampling_params
from qkv.serving.http.prompt_validation import (
    check_can,
    encode_prompt,
    host_of,
    prepare,
    ready_model,
)
from qkv.serving.http.response_chunks import merged_chunks
from qkv.serving.http.schema.native_schema import NextRequest, TokenizeRequest
from qkv.serving.http.schema.openai_schema import ChatMessage
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import NextReply, TokenizeReply
from qkv.serving.http.sse import while_connected
from qkv.serving.routes.chat_completions import check_chats, encode_messages
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["qkv"])


@router.post("/v1/next", responses=documented(NextReply))
async def next_token(body: NextRequest, request: Request) -> Response:
    """The most likely next tokens, under the model's and under the sampled distribution."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, body.timeout)
    check_can(model, body.model, model.predicts == "next", "does not continue a prompt")
    size = len(body.prompt)
    ids = await prepare(request, entry, deadline, size, encode_prompt, tokenizer, body.prompt)
    generation = GenerationRequest(
        prompt=ids,
        max_tokens=1,
        sampling=sampling_params(body),
        end_ids=(),  # here an end token is a token like any other
        logprobs=min(body.top, model.config.vocabulary),
        heads_off=parse_heads_off(model, body.heads_off),
        deadline=deadline,
    )

    async def generate() -> list[TokenLogprob]:
        tokens: list[TokenLogprob] = []
        async for _, chunk in merged_chunks(host_of(request), body.model, [generation]):
            tokens += chunk.tokens

        return tokens

    (token,) = await while_connected(request.receive, generate())

    tokens = [token_json.likely_token(tokenizer, other) for other in token.alternatives]
    rest = 1 - sum(alternative.probability for alternative in token.alternatives)

    return Json({"tokens": tokens, "rest": min(max(rest, 0.0), 1.0)})


@router.post("/v1/tokenize", responses=documented(TokenizeReply))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Tokenize a text, without special tokens around it, or a chat by its template; decode ids."""
    entry, model, tokenizer = ready_model(request, body.model)
    deadline = request_deadline(request, None)
    if body.messages is not None:
        check_chats(tokenizer, body.model)
        work = chat_reply
        return await prepare(request, entry, deadline, None, work, tokenizer, body.messages)
    if body.ids is not None:
        check_ids(body.ids, model.config.vocabulary, "ids")

    def reply() -> Response:
        if body.text is not None:
            text = body.text
            ids = tokenizer.encode(text)
        else:
            ids = body.ids or []
            text = tokenizer.decode(ids)

        tokens = token_json.prompt_tokens(tokenizer, ids)
        return Json({"tokens": tokens, "count": len(ids), "text": text})

    return await prepare(request, entry, deadline, len(body.text or body.ids or ()), reply)


def chat_reply(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> Response:
    """The tokens that a model reads of a chat; those of the template are marked."""
    ids, _ = encode_messages(tokenizer, messages)
    added = {id for id, _ in tokenizer.added_tokens.values()} | set(tokenizer.special)
    tokens = token_json.prompt_tokens(tokenizer, ids)
    for token in tokens:
        token["special"] = token["id"] in added

    return Json({"tokens": tokens, "count": len(ids), "text": tokenizer.decode(ids)})
