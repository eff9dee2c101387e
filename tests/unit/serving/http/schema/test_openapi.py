"""The OpenAPI document: every route behaves as documented, for valid and invalid bodies."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.core import NOT_SET

from qkv.serving.model_host import ModelHost
from support.small_server import Running, asgi_app
from support.waiting import PATIENCE

ROUTES = {
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/next",
    "/v1/translate",
    "/v1/fill",
    "/v1/classify",
    "/v1/attention",
    "/v1/walk",
    "/v1/effects",
    "/v1/tokenize",
}
NAMES = ("gpt", "chat", "bert", "translator", "tuned", "rnn")
EXAMPLES = 5
"""Number of bodies per route; every run draws others."""
COSTLY = {
    "n": 2,
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "min_tokens": 4,
    "beams": 4,
    "n_best": 2,
    "length": 4,
}
"""Fields that only cost time when they are larger; their bounds are tested elsewhere."""
CHECKED = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


def test_every_route_is_documented_with_all_its_responses(server: Running) -> None:
    document = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE).json()
    paths = document["paths"]
    assert paths.keys() == ROUTES | {"/health", "/metrics", "/v1/models", "/v1/models/{name}"}
    for path in ROUTES:
        operation = paths[path]["post"]
        assert operation["responses"].keys() == set(
            map(str, (200, 400, 401, 403, 404, 408, 413, 415, 429, 500, 503))
        )
        kind = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition(
            "/"
        )[2]
        fields = document["components"]["schemas"][kind]
        assert fields["examples"]
        assert fields["additionalProperties"] is False
        assert "$ref" in operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert "422" not in str(document)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/translate"):
        assert "text/event-stream" in paths[path]["post"]["responses"]["200"]["content"]


GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "gpt", "prompt": "the cat", "max_tokens": 4, "n": 1},
    "/v1/chat/completions": {
        "model": "chat",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 4,
        "n": 1,
    },
    "/v1/embeddings": {"model": "bert", "input": ["the cat"]},
    "/v1/next": {"model": "gpt", "prompt": "the cat"},
    "/v1/translate": {"model": "translator", "text": "the cat", "max_tokens": 4},
    "/v1/fill": {"model": "bert", "text": "the [mask] sat"},
    "/v1/classify": {"model": "tuned", "text": ["the cat"]},
    "/v1/attention": {"model": "gpt", "text": "the cat"},
    "/v1/walk": {"model": "gpt", "text": "the cat", "layer": 0, "head": 0, "position": None},
    "/v1/effects": {"model": "gpt", "text": "the cat", "heads": ["0.1"]},
    "/v1/tokenize": {"model": "gpt", "text": "the cat"},
}
"""A valid body of every route."""
INSTEAD = {"source", "ids", "messages"}
"""Fields that exclude one of the valid body."""


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"]
)
def test_responses_conform_to_the_document(host: ModelHost, mode: GenerationMode) -> None:
    """Valid and invalid bodies never cause a 5xx, only documented statuses and schemas."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", asgi_app(host), timeout=PATIENCE)
    statuses: set[int] = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode == GenerationMode.NEGATIVE and operation.method == "get":
            continue  # it has no body

        @given(case=operation.as_strategy(mode))
        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case) -> None:
            statuses.add(response_to(case, mode).status_code)

        check()
        if mode == GenerationMode.POSITIVE:  # a valid body succeeds
            plain = operation.Case(
                body=GOOD.get(operation.path, NOT_SET), path_parameters={"name": "gpt"}
            )
            assert plain.call_and_validate(checks=CHECKED, timeout=PATIENCE).status_code == 200
    expected = {200, 400, 404} if mode == GenerationMode.POSITIVE else {200, 400, 404, 413, 415}
    assert statuses <= expected


def response_to(case: schemathesis.Case, mode: GenerationMode) -> Any:
    """Call a route, mostly with an existing model and half of the time with a valid body."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("model"), str) and body["model"]:
        body["model"] = (*NAMES, body["model"])[len(str(body)) % (len(NAMES) + 1)]
        body.pop("timeout", None)  # which requests are late depends on the machine
        if mode == GenerationMode.POSITIVE and len(str(body)) % 2:
            good = GOOD[case.operation.path]
            others = {
                name: body[name]
                for name in sorted(body)[: len(str(body)) % 4]
                if name not in INSTEAD
            }
            case.body = {**others, **good}
    if isinstance(case.body, dict) and mode == GenerationMode.POSITIVE:
        for name, most in COSTLY.items():
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], most)
    return case.call_and_validate(checks=CHECKED, timeout=PATIENCE)
