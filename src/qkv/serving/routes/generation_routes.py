"""The routes that generate text: their bodies and endpoints, by path."""

from __future__ import annotations

from qkv.serving.http.direct_routes import DirectRoute
from qkv.serving.http.schema.openai_schema import ChatRequest, CompletionRequest
from qkv.serving.routes import chat_completions, completions

DIRECT = {
    "/v1/completions": DirectRoute(CompletionRequest, completions.complete),
    "/v1/chat/completions": DirectRoute(ChatRequest, chat_completions.chat),
}
