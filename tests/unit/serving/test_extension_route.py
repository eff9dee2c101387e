"""A server route that is written outside of the package."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel

from qkv.serving import serve
from qkv.serving.http.middleware import RequestMiddleware
from qkv.serving.http.output_stream import job_result
from qkv.serving.http.params import request_deadline
from qkv.serving.http.prompt_validation import ready_model
from qkv.serving.http.server import Server
from support.engines import WORDS
from support.families import gpt

KEY = {"authorization": "Bearer a-key-of-this-server"}
router = APIRouter(tags=["mine"])


class LengthRequest(BaseModel):
    model: str
    text: str


@router.post("/v1/length")
async def length(body: LengthRequest, request: Request) -> dict[str, int]:
    """The number of parameters of a model and of tokens of a text, counted by the engine."""
    _, _, tokenizer = ready_model(request, body.model)

    def count(model: Any, _: Any) -> int:
        return sum(weight.numel() for weight in model.parameters())

    deadline = request_deadline(request, None)
    parameters = await job_result(request, body.model, count, deadline)
    return {"tokens": len(tokenizer.encode(body.text)), "parameters": parameters}


def test_a_router_from_outside_is_served_behind_the_same_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = gpt()
    replies: list[httpx.Response] = []

    async def visit(app: RequestMiddleware) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": "tiny", "text": "the cat"}
            replies.append(await client.post("/v1/length", json=body))
            client.headers.update(KEY)
            replies.append(await client.post("/v1/length", json=body))
            replies.append(await client.post("/v1/length", json={**body, "model": "none"}))
            replies.append(await client.post("/v1/length", json={"model": "tiny"}))
            replies.append(await client.get("/openapi.json"))

    def run(server: Server, sockets: list[socket.socket]) -> None:
        asyncio.run(visit(server.app))

    monkeypatch.setattr(Server, "run", run)
    serve({"tiny": (model, WORDS)}, port=0, keys=["a-key-of-this-server"], routers=[router])

    assert [reply.status_code for reply in replies] == [401, 200, 404, 400, 200]
    parameters = sum(weight.numel() for weight in model.parameters())
    assert replies[1].json() == {"tokens": len(WORDS.encode("the cat")), "parameters": parameters}
    assert replies[3].json()["error"]["message"] == "text: this field is missing"
    assert "/v1/length" in replies[4].json()["paths"]
