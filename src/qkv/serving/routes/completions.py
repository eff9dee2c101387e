"""POST /v1/completions: continue one prompt or several, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.serving.engine.admission import max_new_tokens
from qkv.serving.engine.generation_request import GenerationRequest, TokenLogprob
from qkv.serving.http import token_json
from qkv.serving.http.output_stream import ChoiceStream
from qkv.serving.http.params import check_logprob_entries, request_deadline, shared_fields
from qkv.serving.http.prompt_validation import check_can, encode_prompt, prepare, ready_model
from qkv.serving.http.schema.openai_schema import CompletionRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import CompletionReply

router = APIRouter(tags=["OpenAI"])
DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions", responses=documented(CompletionReply, also=STREAMED))
async def complete(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt."""
    entry, model, tokenizer = ready_model(request, body.model)
    check_can(model, body.model, model.predicts == "next", "does not continue a prompt")
    deadline = request_deadline(request, body.timeout)
    fields = shared_fields(body, model, deadline)

    # Tokenize the prompts
    def encode() -> list[list[int]]:
        return [encode_prompt(tokenizer, prompt) for prompt in body.prompts]

    size = sum(map(len, body.prompts))
    prompts = await prepare(request, entry, deadline, size, encode)

    # Build one request per prompt
    wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    logprobs = body.logprobs
    if logprobs is None and body.tokens:
        logprobs = 0

    requests: list[GenerationRequest] = []
    for ids in prompts:
        generation = GenerationRequest(
            prompt=ids,
            max_tokens=max_new_tokens(model, ids, wanted),
            end_ids=() if tokenizer.end is None else (tokenizer.end,),
            logprobs=logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            echo=bool(body.echo),
            **fields,
        )
        requests.append(generation)

    check_logprob_entries(requests)

    return await CompletionStream(body, tokenizer, prompts).response(request, requests)


class CompletionStream(ChoiceStream):
    """The choices of a completion."""

    prefix = "cmpl"
    whole_object = "text_completion"
    event_object = "text_completion"

    def message(self, text: str) -> dict[str, Any]:
        """The text."""
        return {"text": text}

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The logprobs, if they were requested."""
        if self.body.logprobs is None:
            return None

        return token_json.completion_logprobs(self.tokenizer, tokens, self.body.logprobs)
