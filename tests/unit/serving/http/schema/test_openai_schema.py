"""Every request field of OpenAI's client has an effect, is accepted without one, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from support.small_server import Running
from support.waiting import PATIENCE

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
ACCOUNT: dict[str, list[Any]] = {"user": ["someone", None]}
SAMPLING: dict[str, list[Any]] = {
    "frequency_penalty": [1.0, None],
    "logprobs": [None],
    "max_tokens": [2, None],
    "n": [2, None],
    "presence_penalty": [1.0, None],
    "seed": [1, None],
    "stop": ["e", ["a", "b"], [], None],
    "stream": [False, None],
    "stream_options": [{"include_usage": True}, {"include_obfuscation": False}, None],
    "temperature": [0.5, None],
    "top_p": [0.5, None],
}

HONOURED: dict[str, dict[str, list[Any]]] = {
    "completions": SAMPLING
    | {"model": ["gpt"], "prompt": ["mice", ["mice"], [5], [[5]], None], "echo": [True, None]}
    | {"logprobs": [2, None]},
    "chat/completions": SAMPLING
    | {
        "model": ["chat"],
        "messages": [[{"role": "user", "content": "mice"}]],
        "max_completion_tokens": [2, None],
    }
    | {"logprobs": [True, None], "top_logprobs": [None]},
    "embeddings": {
        "model": ["bert"],
        "input": ["mice", ["mice"], [5], [[5]]],
        "encoding_format": ["float", "base64"],
    },
}
"""Valid values of fields with an effect."""
ACCEPTED: dict[str, dict[str, list[Any]]] = {
    "completions": ACCOUNT | {"best_of": [1, None], "logit_bias": [{}, None], "suffix": ["", None]},
    "chat/completions": ACCOUNT
    | {
        "safety_identifier": ["x", None],
        "metadata": [{"a": "b"}, {}, None],
        "store": [True, False, None],
        "service_tier": ["auto", "default", "flex", "priority", None],
        "prompt_cache_key": ["x", None],
        "prompt_cache_options": [{"mode": "explicit", "ttl": "30m"}],
        "prompt_cache_retention": ["24h", None],
        "parallel_tool_calls": [True, False],
        "reasoning_effort": ["none", "low", "high", None],
        "verbosity": ["low", "high", None],
        "prediction": [{"type": "content", "content": "x"}, None],
        "modalities": [["text"], None],
        "response_format": [{"type": "text"}],
        "tools": [[]],
        "functions": [[]],
        "tool_choice": ["none", "auto"],
        "function_call": ["none", "auto"],
        "logit_bias": [{}, None],
        "audio": [None],
        "moderation": [None],
        "web_search_options": [None],
    },
    "embeddings": ACCOUNT | {"dimensions": [16, None]},
}
"""Values that do not change the response."""
REFUSED: dict[str, dict[str, list[Any]]] = {
    "completions": {"best_of": [3], "logit_bias": [{"5": 1}], "suffix": ["the end"]},
    "chat/completions": {
        "modalities": [["text", "audio"], ["audio"]],
        "tools": [[TOOL]],
        "functions": [[TOOL["function"]]],
        "response_format": [
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "x"}},
        ],
        "tool_choice": ["required", TOOL],
        "function_call": [{"name": "f"}],
        "logit_bias": [{"5": 1}],
        "audio": [{"voice": "alloy", "format": "wav"}],
        "web_search_options": [{}],
        "moderation": [{"model": "omni-moderation-latest"}],
    },
    "embeddings": {"dimensions": [3]},
}
"""Values whose effect is not supported."""
BASE: dict[str, dict[str, Any]] = {
    "completions": {"model": "gpt", "prompt": "the cat", "max_tokens": 2, "temperature": 0},
    "chat/completions": {
        "model": "chat",
        "messages": [{"role": "user", "content": "the cat"}],
        "max_tokens": 2,
        "temperature": 0,
    },
    "embeddings": {"model": "bert", "input": "the cat"},
}
TYPES: dict[str, list[Any]] = {
    "completions": [
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ],
    "chat/completions": [
        chat_create_params.CompletionCreateParamsNonStreaming,
        chat_create_params.CompletionCreateParamsStreaming,
    ],
    "embeddings": [embedding_create_params.EmbeddingCreateParams],
}


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def reply_of(http: httpx.Client, route: str, **fields: Any) -> dict[str, Any]:
    response = http.post(f"/v1/{route}", json={**BASE[route], **fields})
    assert response.status_code == 200, (fields, response.text)
    reply = response.json()
    return {name: value for name, value in reply.items() if name not in ("id", "created")}


@pytest.mark.parametrize("route", BASE)
def test_no_field_of_the_client_is_missing(route: str) -> None:
    fields = {name for kind in TYPES[route] for name in kind.__annotations__}
    assert fields == {*HONOURED[route], *ACCEPTED[route], *REFUSED[route]}


@pytest.mark.parametrize("route", BASE)
def test_fields_with_an_effect_are_accepted(http: httpx.Client, route: str) -> None:
    for name, values in HONOURED[route].items():
        for value in values:
            reply_of(http, route, **{name: value})


@pytest.mark.parametrize("route", BASE)
def test_fields_without_an_effect_change_nothing(http: httpx.Client, route: str) -> None:
    plain = reply_of(http, route)
    for name, values in ACCEPTED[route].items():
        for value in values:
            assert reply_of(http, route, **{name: value}) == plain, name
    common = {
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "safety_identifier": "x",
    }
    assert reply_of(http, route, **common) == plain


@pytest.mark.parametrize("route", BASE)
def test_unsupported_values_are_refused_by_name(http: httpx.Client, route: str) -> None:
    for name, values in REFUSED[route].items():
        for value in values:
            response = http.post(f"/v1/{route}", json={**BASE[route], name: value})
            assert response.status_code == 400, (name, value)
            error = response.json()["error"]
            assert error["param"] == name
            assert error["message"].startswith((f"{name}: ", f"{name} is not supported"))
            assert not error["message"].startswith(f"{name}: unknown field")


@pytest.mark.parametrize(
    ("route", "first"),
    [
        ("completions", "model, prompt, max_tokens, logprobs, echo, "),
        (
            "chat/completions",
            "model, messages, max_tokens, max_completion_tokens, logprobs, top_logprobs, ",
        ),
        ("embeddings", "model, input, encoding_format, dimensions, timeout"),
    ],
)
def test_an_unknown_field_is_refused_with_a_list_of_fields(
    http: httpx.Client, route: str, first: str
) -> None:
    error = http.post(f"/v1/{route}", json={**BASE[route], "zzzzzzzz": 1}).json()["error"]
    assert error["param"] == "zzzzzzzz"
    assert error["message"].startswith(
        f"zzzzzzzz: unknown field; remove it; the fields are {first}"
    )
    assert "metadata" not in error["message"]
    assert len(error["message"]) < 500
    for name in HONOURED[route]:
        assert f" {name}" in error["message"]
