"""Invalid, expensive and late requests: every error has the same format, and none is a 500."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from support.deadlines import DEADLINES
from support.holding import HeldEngine, HeldJob
from support.serving_fixtures import Models
from support.small_server import Running, hosting, running
from support.waiting import PATIENCE, until

DEEP = "[" * 100_000
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def fault(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a response, whose format is always the same."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "body: expected a JSON object"),
        (b"nonsense", "request body is not valid JSON"),
        (b'{"model": "gpt", "prompt": "\xff\xfe"}', "body: cannot be read"),
        (DEEP.encode(), "body: cannot be read"),
        (
            b'{"model": ' + DEEP[:5000].encode() + DEEP[:5000].replace("[", "]").encode() + b"}",
            "body|model",
        ),
        (b"[]", "body: expected a JSON object"),
        (b'"gpt"', "body: expected a JSON object"),
        (b"{}", "model: .*missing"),
        (b'{"model": "gpt", "temperature": NaN}', "temperature: "),
        (b'{"model": "gpt", "temperature": Infinity}', "temperature: "),
        (b'{"model": "gpt", "temperature": 1e999}', "temperature: "),
        (b'{"model": "gpt", "max_tokens": ' + b"9" * 30 + b"}", "max_tokens: "),
        (b'{"model": "gpt", "max_tokens": ' + b"9" * 10_000 + b"}", "body: cannot be read"),
        (b'{"model": "gpt", "max_tokens": -1}', "max_tokens: .*greater"),
        (b'{"model": "gpt", "max_tokens": 1.5}', "max_tokens: .*valid integer"),
        (b'{"model": "gpt", "max_tokens": "5"}', "max_tokens: .*valid integer"),
        (b'{"model": "gpt", "max_tokens": true}', "max_tokens: .*valid integer"),
        (b'{"model": "gpt", "n": 1000000}', "n: .*less"),
        (b'{"model": "gpt", "n": 0}', "n: .*greater"),
        (b'{"model": "gpt", "seed": 18446744073709551616}', "seed: .*less"),
        (b'{"model": "gpt", "stop": ["a", ""]}', "stop: "),
        (b'{"model": "gpt", "stop": ' + json.dumps(["a"] * 99).encode() + b"}", "stop: "),
        (b'{"model": "gpt", "stop": "' + b"a" * 999 + b'"}', "stop: "),
        (b'{"model": "gpt", "prompt": "\\ud800"}', "prompt: .*valid string"),
        (b'{"model": "\\ud800"}', "model: .*valid string"),
        (b'{"model": "gpt", "\\ud800": 1}', "unknown field"),
        (b'{"model": "gpt", "' + b"a" * 100_000 + b'": 1}', "unknown field"),
        (b'{"model": "gpt", "prompt": []}', "prompt: "),
        (b'{"model": "gpt", "prompt": [[]]}', "prompt: "),
        (b'{"model": "gpt", "prompt": [1, "a"]}', "prompt: "),
        (b'{"model": "gpt", "prompt": [-1]}', "prompt: "),
        (b'{"model": "gpt", "prompt": {"a": 1}}', "prompt: "),
        (b'{"model": "gpt", "prompt": ' + json.dumps(["a"] * 1000).encode() + b"}", "prompt: "),
        (b'{"model": "gpt", "prompt": "' + b"the cat " * 30_000 + b'"}', "prompt: .*context"),
        (b'{"model": "gpt", "heads_off": ["a.b"]}', "heads_off: "),
        (b'{"model": "gpt", "logit_bias": {"5": 1}}', "logit_bias is not supported; remove it"),
        (b'{"model": "gpt", "stream": "yes"}', "stream: "),
        (b'{"model": "gpt", "top_k": 0}', "top_k: "),
        (b'{"model": "gpt", "timeout": 0}', "timeout: "),
        (
            b'{"model": "gpt", "prompt": [' + b"-1," * 500_000 + b"0]}",
            "prompt: .*or equal to 0",
        ),
        (
            json.dumps({"model": "gpt"} | {f"field {n}": 1 for n in range(50_000)}).encode(),
            "50,001 fields",
        ),
    ],
)
def test_an_invalid_completion_is_refused_in_one_sentence(
    http: httpx.Client, content: bytes, message: str
) -> None:
    error = fault(http.post("/v1/completions", content=content, headers=JSON))
    assert re.search(message, error["message"]), error["message"]
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"


LONG_LOGPROBS = {"model": "long", "n": 99, "max_tokens": 99, "logprobs": 99}
LONG_TEXT = "the cat " * 13_000


@pytest.mark.parametrize(
    ("route", "body", "field", "keyword"),
    [
        ("completions", {**LONG_LOGPROBS, "prompt": "a"}, "logprobs", "200,000"),
        (
            "completions",
            {"model": "long", "prompt": ["a"] * 128, "max_tokens": 2000, "logprobs": 0},
            "logprobs",
            "200,000",
        ),
        (
            "completions",
            {"model": "long", "prompt": [5] * 3000, "n": 50, "echo": True, "logprobs": 1},
            "logprobs",
            "200,000",
        ),
        ("fill", {"model": "bert", "text": "the [mask] " * 20_000}, "text", "200,000 characters"),
        ("classify", {"model": "tuned", "text": [LONG_TEXT] * 2}, "text", "200,000 characters"),
        ("classify", {"model": "tuned", "text": [[LONG_TEXT] * 2]}, "text", "200,000 characters"),
        ("translate", {"model": "rnn", "text": "the cat " * 3_000}, "text", "not 6,001"),
        (
            "attention",
            {"model": "translator", "source": "a", "target": "the " * 9_000},
            "target",
            "limited to 1,024 tokens",
        ),
        (
            "attention",
            {"model": "translator", "source": "the " * 9_000},
            "source",
            "limited to 1,024 tokens",
        ),
        ("attention", {"model": "long", "text": [5] * 513}, "layers", "at most 512 tokens"),
        (
            "attention",
            {"model": "long", "text": [5] * 1025, "layers": [0]},
            "text",
            "limited to 1,024 tokens",
        ),
        ("attention", {"model": "long", "text": [5] * 257, "norms": True}, "norms", "256 tokens"),
        ("attention", {"model": "long", "text": [5] * 257, "lens": True}, "lens", "256 tokens"),
        (
            "chat/completions",
            {"model": "chat", "messages": [{"role": "user"}]},
            "messages",
            r"missing \(at 0.cont",
        ),
        (
            "chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "a", "tone": "kind"}]},
            "messages",
            r"unknown field.* \(at 0.tone\)",
        ),
    ],
)
def test_expensive_or_incomplete_requests_are_refused(
    http: httpx.Client,
    host: ModelHost,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
    body: dict[str, Any],
    field: str,
    keyword: str,
) -> None:
    """They never reach the engine, except for attention, which checks its size in its job."""
    if route != "attention":
        monkeypatch.setattr(host, "submit", None)
        monkeypatch.setattr(host, "submit_job", None)
    error = fault(http.post(f"/v1/{route}", json=body))
    assert re.search(f"{field}: .*{keyword}", error["message"]), error["message"]
    assert error["param"] == field


def test_a_prompt_is_limited_also_without_a_context_limit(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.engine.admission.MAX_SEQUENCE", 10)
    monkeypatch.setattr("qkv.serving.engine.admission.context_limit", lambda model, beyond: None)
    error = fault(http.post("/v1/completions", json={"model": "gpt", "prompt": [5] * 11}))
    assert re.search("prompt: 11 tokens .*limit of 10", error["message"])
    assert (
        http.post("/v1/completions", json={"model": "gpt", "prompt": [5] * 10}).status_code == 200
    )


def test_a_large_response_is_written_beside_the_event_loop(
    http: httpx.Client, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.serving.http import errors

    real, threads = errors.to_json, []

    def tracked(value: Any) -> bytes:
        written = real(value)
        if len(written) > 10_000:
            threads.append(threading.current_thread())
        return written

    monkeypatch.setattr(errors, "to_json", tracked)
    body = {"model": "long", "prompt": "the cat", "max_tokens": 50, "min_tokens": 50}
    body |= {"logprobs": 50}
    assert http.post("/v1/completions", json=body).status_code == 200
    assert threads != []
    assert server.thread not in threads


def test_wrong_addresses_methods_and_content_types(http: httpx.Client) -> None:
    assert fault(http.get("/nowhere"), 404)["code"] == "not_found"
    fault(http.get("/v1/completions"), 405)
    assert http.get("/v1/completions").headers["allow"] == "POST"
    fault(http.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}), 415)
    fault(http.post("/v1/completions", content=b"{}"), 415)
    fault(http.post("/v1/completions/", content=b"{}", headers=JSON), 404)


def test_a_large_body_is_refused_before_it_is_read(server: Running) -> None:
    """By its length before anything is sent; without a length, as soon as it is too large."""

    def response_to(*parts: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
            for part in parts:
                line.sendall(part)
            return b"".join(iter(lambda: line.recv(65536), b""))  # until it is closed

    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    response = response_to(head + b"Content-Length: 99999999999\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b"body: expected at most" in response
    chunk = b"%x\r\n" % (1 << 20) + b"a" * (1 << 20) + b"\r\n"
    assert response_to(
        head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, b"1\r\na\r\n"
    ).startswith(b"HTTP/1.1 413 ")


def test_a_deadline_before_the_first_token_is_a_timeout(models: Models) -> None:
    """The engine is blocked until all deadlines have passed."""
    host = hosting({name: models[name] for name in ("gpt", "translator", "tuned")})
    late: dict[str, dict[str, Any]] = {
        "completions": {"model": "gpt", "n": 3},
        "completions?stream": {"model": "gpt", "stream": True},
        "next": {"model": "gpt"},
        "translate": {"model": "translator", "text": "the cat sat"},
        "classify": {"model": "tuned", "text": "the cat sat"},
        "attention": {"model": "gpt", "text": "the cat sat"},
        "effects": {"model": "gpt", "text": "the cat sat", "heads": ["0.0"]},
    }
    responses: dict[str, httpx.Response] = {}
    with running(host) as server:

        def post_late(route: str) -> None:
            responses[route] = httpx.post(
                f"{server.url}/v1/{route}", json={**late[route], "timeout": 0.1}, timeout=PATIENCE
            )

        held, job = HeldEngine(host), HeldJob()
        first = host.submit_job("gpt", job)
        assert job.reached.wait(PATIENCE)
        clients = [threading.Thread(target=post_late, args=(route,)) for route in late]
        for client in clients:
            client.start()
        for client in clients:  # no client waits for the engine
            client.join(PATIENCE)
        for response in responses.values():
            assert fault(response, 408)["type"] == "timeout_error"
        assert responses.keys() == late.keys()
        held.free.set()
        job.free.set()
        first.wait()
    host.close()


def test_a_deadline_after_some_tokens_ends_a_stream_in_time(models: Models) -> None:
    """The tokens before the engine was blocked are sent."""
    host = hosting({"long": models["long"]})
    body = {
        "model": "long",
        "prompt": "the cat",
        "max_tokens": 4000,
        "min_tokens": 4000,
        "n": 2,
        "stream": True,
    }
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        for seconds in DEADLINES:
            with http.stream(
                "POST", "/v1/completions", json={**body, "timeout": seconds}
            ) as response:
                if response.status_code == 408:  # before the first token
                    continue
                lines = (line for line in response.iter_lines() if line)
                first = next(lines)
                held = HeldEngine(host)
                *events, done = [line.removeprefix("data: ") for line in (first, *lines)]
                break
        held.free.set()
    host.close()
    assert done == "[DONE]"
    ended = [
        choice for event in events for choice in json.loads(event)["choices"] if choice["reason"]
    ]
    assert sorted(choice["index"] for choice in ended) == [0, 1]
    assert {(choice["reason"], choice["finish_reason"]) for choice in ended} == {
        ("deadline", "length")
    }


def test_a_full_queue_returns_429_with_retry_after(models: Models) -> None:
    host = hosting({"gpt": models["gpt"]}, queue=1, rows=1)
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        job = HeldJob()
        first = host.submit_job("gpt", job)
        assert job.reached.wait(PATIENCE)
        second = host.submit_job("gpt", lambda model, tokenizer: None)
        for stream in (False, True):
            response = http.post("/v1/completions", json={"model": "gpt", "stream": stream})
            assert fault(response, 429)["type"] == "rate_limit_error"
            assert int(response.headers["retry-after"]) >= 1
        fault(http.post("/v1/classify", json={"model": "gpt", "text": "a"}))
        job.free.set()
        first.wait()
        second.wait()
        assert (
            http.post("/v1/completions", json={"model": "gpt", "prompt": "the cat"}).status_code
            == 200
        )
    host.close()


def test_an_unexpected_error_is_reported_without_its_message(
    host: ModelHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a 500 in the usual format; the log has its location, and nothing of the prompt."""

    def broken(*arguments: Any) -> None:
        raise RuntimeError("secret prompt")

    monkeypatch.setattr(host, "submit", broken)
    with (
        running(host) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as http,
        caplog.at_level("INFO"),
    ):
        for stream in (False, True):
            response = http.post(
                "/v1/completions",
                json={"model": "gpt", "prompt": "secret prompt", "stream": stream},
            )
            error = fault(response, 500)
            assert "secret" not in error["message"]
            assert response.headers["x-content-type-options"] == "nosniff"
    assert "RuntimeError at" in caplog.text
    assert "secret" not in caplog.text


def test_a_model_that_is_not_ready_is_unavailable(models: Models) -> None:
    host, ready = hosting({"gpt": models["gpt"]}), threading.Event()

    def slow() -> Any:
        ready.wait(PATIENCE)
        raise ValueError("weights: they are broken")

    host.add("late", slow)
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        response = http.post("/v1/completions", json={"model": "late"})
        assert "still loading" in fault(response, 503)["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert http.get("/health").json()["models"]["late"] == {"state": "loading", "error": None}
        ready.set()
        until(lambda: http.get("/health").json()["models"]["late"]["state"] != "loading")
        health = http.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ready")
        assert health.json()["models"]["late"]["error"] == "weights: they are broken"
        with running(host, AccessRules(keys=("a-key-of-this",))) as locked:
            # Without a key the reason is hidden
            shown = httpx.get(f"{locked.url}/health", timeout=PATIENCE).json()["models"]
            assert shown["late"] == {"state": "failed", "error": "it cannot be loaded"}
            assert shown["gpt"] == {"state": "ready", "error": None}
        response = http.post("/v1/completions", json={"model": "late"})
        assert "late has failed; see GET /health" in fault(response, 503)["message"]
        listed = {
            model["id"]: model["qkv"]["state"] for model in http.get("/v1/models").json()["data"]
        }
        assert listed == {"gpt": "ready", "late": "failed"}
    host.close()
