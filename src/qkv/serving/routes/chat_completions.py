"""POST /v1/chat/completions: the next message of a chat, by the chat template of the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from qkv.serving.engine.admission import check_ids, max_new_tokens
from qkv.serving.engine.generation_request import GenerationRequest, TokenLogprob
from qkv.serving.http import token_json
from qkv.serving.http.output_stream import ChoiceStream
from qkv.serving.http.params import (
    MAX_LOGPROBS,
    check_logprob_entries,
    request_deadline,
    shared_fields,
)
from qkv.serving.http.prompt_validation import check_can, prepare, ready_model
from qkv.serving.http.schema.openai_schema import MAX_TOKENS, ChatMessage, ChatRequest
from qkv.serving.http.schema.openapi import STREAMED, documented
from qkv.serving.http.schema.response_schema import ChatReply
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from qkv.text.tokenizer import Tokenizer

router = APIRouter(tags=["OpenAI"])
ROLES = {"developer": "system"}
"""OpenAI's newer name of a role, and the one that templates know."""


@router.post("/v1/chat/completions", responses=documented(ChatReply, also=STREAMED))
async def chat(body: ChatRequest, request: Request) -> Response:
    """Generate the assistant's next message."""
    entry, model, tokenizer = ready_model(request, body.model)
    check_can(model, body.model, model.predicts == "next", "does not chat")
    check_chats(tokenizer, body.model)

    # Apply the chat template
    deadline = request_deadline(request, body.timeout)
    fields = shared_fields(body, model, deadline)
    work = encode_messages
    ids, end_ids = await prepare(request, entry, deadline, None, work, tokenizer, body.messages)
    check_ids(body.answer_ids or [], model.config.vocabulary, "answer_ids")
    ids += body.answer_ids or []

    # Build the request; null max_tokens is what logprobs and context allow
    logprobs = None
    default_max_tokens = MAX_TOKENS
    if body.logprobs or body.tokens:
        logprobs = body.top_logprobs or 0
        default_max_tokens = MAX_LOGPROBS // (fields["samples"] * (logprobs + 1))

    wanted = body.max_completion_tokens or body.max_tokens or default_max_tokens
    generation = GenerationRequest(
        prompt=ids,
        prompt_name="messages",
        max_tokens=max_new_tokens(model, ids, wanted),
        end_ids=tuple(end_ids),
        logprobs=logprobs,
        **fields,
    )
    check_logprob_entries([generation])

    return await ChatStream(body, tokenizer, [ids]).response(request, [generation])


def check_chats(tokenizer: Tokenizer, name: str) -> None:
    """Raise ValueError if the model has no chat template."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"model: {name} has no chat template, so it was not trained to chat; "
            "use /v1/completions"
        )


def encode_messages(
    tokenizer: Tokenizer, chat_messages: Sequence[ChatMessage]
) -> tuple[list[int], list[int]]:
    """The ids of a chat, and those that end a message."""
    messages = []
    for message in chat_messages:
        role = ROLES.get(message.role, message.role)
        messages.append(Message(role=role, content=message.text))

    return encode_chat(tokenizer, messages), end_of_turn_ids(tokenizer)


class ChatStream(ChoiceStream):
    """The choices of a chat completion."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def message(self, text: str) -> dict[str, Any]:
        """The message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """What an event adds to the message; the first one has the role."""
        role = {"role": "assistant"} if first else {}
        return {"delta": {**role, "content": text}}

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The logprobs, if they were requested."""
        if not self.body.logprobs:
            return None

        return token_json.chat_logprobs(self.tokenizer, tokens, self.body.top_logprobs or 0)
