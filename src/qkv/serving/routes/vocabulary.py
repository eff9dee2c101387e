"""POST /v1/next, what may come next and how likely it is; and /v1/tokenize, a text as tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.models import GPT
from qkv.serving.engine.generation_request import GenerationRequest, TokenLogprob
from qkv.serving.http import token_json
from qkv.serving.http.errors import Json
from qkv.serving.http.params import (
    check_ids,
    choice_of,
    deadline_of,
    heads_of,
    host_of,
    ids_of,
    only,
    opened,
    prepared,
    together,
)
from qkv.serving.http.schema.native_schema import NextRequest, TokenizeRequest
from qkv.serving.http.schema.openapi import documented
from qkv.serving.http.schema.response_schema import NextReply, TokenizeReply
from qkv.serving.http.sse import answer

router = APIRouter(tags=["qkv"])


@router.post("/v1/next", responses=documented(NextReply))
async def next_token(asked: NextRequest, request: Request) -> Response:
    """The likeliest next tokens, as the model says them and as they would be drawn."""
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, asked.timeout)
    only(model, asked.model, GPT, "does not go on from a prompt")
    ask = GenerationRequest(
        prompt=await prepared(
            request, served, deadline, len(asked.prompt), ids_of, model, tokenizer, asked.prompt
        ),
        length=1,
        choice=choice_of(asked),
        ends=(),  # the end of a text is a token like any other here
        top=min(asked.top, model.config.vocabulary),
        off=heads_of(model, asked.heads_off),
        deadline=deadline,
    )

    async def said() -> list[TokenLogprob]:
        return [
            each
            async for _, piece in together(host_of(request), asked.model, [ask])
            for each in piece.said
        ]

    (token,) = await answer(request, said())
    listed = [
        {**token_json.lone(tokenizer, each.id), **token_json.chances_of(each)}
        for each in token.alternatives
    ]
    rest = 1 - sum(each.probability for each in token.alternatives)

    return Json({"tokens": listed, "rest": min(max(rest, 0.0), 1.0)})


@router.post("/v1/tokenize", responses=documented(TokenizeReply))
async def tokenize(asked: TokenizeRequest, request: Request) -> Response:
    """A text as its tokens, without any mark before or after it; or ids as the text that they are."""
    served, model, tokenizer = opened(request, asked.model)
    deadline = deadline_of(request, None)
    if asked.ids is not None:
        check_ids(asked.ids, model.config.vocabulary, "ids")

    def work() -> Response:
        ids = tokenizer.encode(asked.text) if asked.text is not None else asked.ids or []
        text = asked.text if asked.text is not None else tokenizer.decode(ids)
        return Json(
            {"tokens": token_json.prompt_tokens(tokenizer, ids), "count": len(ids), "text": text}
        )

    return await prepared(request, served, deadline, len(asked.text or asked.ids or ()), work)
