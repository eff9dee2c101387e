"""A front end in a process of its own answers exactly as a server in one process does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from qkv.serving.front_end.channel import Kind
from qkv.serving.front_end.front_end_process import RemoteMetrics
from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from support.holding import Gate, empty
from support.serving_fixtures import Models
from support.small_server import Running, Separated, hosting, separated
from support.waiting import PATIENCE, until

LONG = {"model": "long", "prompt": "the cat", "max_tokens": 4000, "min_tokens": 4000}
CAT = {"model": "gpt", "prompt": "the cat", "max_tokens": 7, "seed": 3}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}


@pytest.fixture(scope="module")
def apart(host: ModelHost) -> Iterator[Separated]:
    with separated(host) as server:
        yield server


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    content = None
    if body is not None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
    return httpx.request(method, url + path, content=content, headers=headers, timeout=PATIENCE)


def comparable(response: httpx.Response) -> Any:
    """Status, headers and body without what differs between any two responses."""
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("date", "content-length", "set-cookie")
    }
    try:
        body = response.json()
    except ValueError:
        return response.status_code, headers, response.content
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in ("id", "created")}
    return response.status_code, headers, body


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "completion": ("POST", "/v1/completions", CAT),
    "several prompts and samples": (
        "POST",
        "/v1/completions",
        {**CAT, "prompt": ["the cat", "mice", [1, 2, 3]], "n": 2},
    ),
    "logprobs": ("POST", "/v1/completions", {**CAT, "logprobs": 3}),
    "no alternatives": ("POST", "/v1/completions", {**CAT, "logprobs": 0}),
    "echo": ("POST", "/v1/completions", {**CAT, "echo": True, "n": 2}),
    "echo and logprobs": ("POST", "/v1/completions", {**CAT, "echo": True, "logprobs": 1}),
    "only the prompt": ("POST", "/v1/completions", {**CAT, "echo": True, "max_tokens": 0}),
    "no token": ("POST", "/v1/completions", {**CAT, "max_tokens": 0}),
    "tokens": ("POST", "/v1/completions", {**CAT, "tokens": True}),
    "stop strings": ("POST", "/v1/completions", {**CAT, "stop": ["a", "e "]}),
    "penalties": ("POST", "/v1/completions", {**CAT, "repetition_penalty": 1.3, "top_k": 9}),
    "heads off": ("POST", "/v1/completions", {**CAT, "heads_off": ["0.1", "1.*"]}),
    "a wrong head": ("POST", "/v1/completions", {**CAT, "heads_off": ["9.1"]}),
    "to the context": ("POST", "/v1/completions", {**CAT, "max_tokens": 500}),
    "a prompt that is too long": ("POST", "/v1/completions", {**CAT, "prompt": [1] * 65}),
    "a wrong id": ("POST", "/v1/completions", {**CAT, "prompt": [99999]}),
    "an empty prompt": ("POST", "/v1/completions", {**CAT, "prompt": []}),
    "too many logprobs": ("POST", "/v1/completions", {**CAT, "logprobs": 101}),
    "an unknown field": ("POST", "/v1/completions", {**CAT, "promt": 1}),
    "an unknown model": ("POST", "/v1/completions", {**CAT, "model": "nobody"}),
    "a model of another kind": ("POST", "/v1/completions", {**CAT, "model": "bert"}),
    "not JSON": ("POST", "/v1/completions", b"{"),
    "a list": ("POST", "/v1/completions", []),
    "no body": ("POST", "/v1/completions", b""),
    "a lone surrogate": ("POST", "/v1/completions", {**CAT, "prompt": "\ud800"}),
    "GET": ("GET", "/v1/completions", None),
    "chat": ("POST", "/v1/chat/completions", {**CHAT, "seed": 1}),
    "chat with logprobs": (
        "POST",
        "/v1/chat/completions",
        {**CHAT, "seed": 1, "logprobs": True, "top_logprobs": 2},
    ),
    "a chat without template": ("POST", "/v1/chat/completions", {**CHAT, "model": "gpt"}),
    "models": ("GET", "/v1/models", None),
    "one model": ("GET", "/v1/models/gpt", None),
    "health": ("GET", "/health", None),
    "page": ("GET", "/", None),
    "nothing": ("GET", "/nothing", None),
    "openapi": ("GET", "/openapi.json", None),
    "head": ("HEAD", "/v1/models", None),
    "tokenize": ("POST", "/v1/tokenize", {"model": "gpt", "text": "the cat"}),
    "next tokens": ("POST", "/v1/next", {"model": "gpt", "prompt": "the cat"}),
    "attention": ("POST", "/v1/attention", {"model": "gpt", "text": "the cat sat"}),
    "translate": (
        "POST",
        "/v1/translate",
        {"model": "translator", "text": "the cat", "beams": 3, "n_best": 2, "alignment": True},
    ),
    "embed": ("POST", "/v1/embeddings", {"model": "bert", "input": ["the cat", "mice"]}),
    "fill": ("POST", "/v1/fill", {"model": "bert", "text": "the [mask] sat"}),
    "classify": ("POST", "/v1/classify", {"model": "tuned", "text": "the cat"}),
    "walk": ("POST", "/v1/walk", {"model": "gpt", "text": "the cat", "layer": 0, "head": 0}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_response(server: Running, apart: Separated, name: str) -> None:
    method, path, body = REQUESTS[name]
    together = ask(server.url, method, path, body)
    separate = ask(apart.url, method, path, body)
    if name == "health":  # one of the two servers may have begun to answer a moment later
        assert separate.json()["status"] == "ready"
    assert comparable(separate) == comparable(together)


def test_a_path_that_no_route_has_differs_from_those_above(apart: Separated) -> None:
    """The table above compares real responses: most are not errors."""
    good = 0
    for method, path, body in REQUESTS.values():
        good += ask(apart.url, method, path, body).status_code == 200
    assert good > len(REQUESTS) // 2


def merged(url: str, path: str, body: Any) -> dict[str, Any]:
    """A stream with the texts of each choice joined: how chunks are cut depends on time."""
    response = ask(url, "POST", path, {**body, "stream": True})
    if response.status_code != 200:
        return {"refused": comparable(response)}
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    choices: dict[int, dict[str, Any]] = {}
    result: dict[str, Any] = {"choices": choices, "heads": set()}
    for line in lines[:-1]:
        event = json.loads(line.removeprefix("data: "))
        result["heads"].add((event["object"], event["model"], len(event["id"])))
        result |= {name: event[name] for name in ("usage", "prompt_tokens") if name in event}
        for choice in event["choices"]:
            index = choice["index"]
            whole = choices.setdefault(index, {"text": "", "tokens": [], "logprobs": []})
            delta = choice.get("delta", choice)
            assert whole.get("reason") is None, "an event follows the last one"
            whole["text"] += delta.get("text", delta.get("content"))
            whole["tokens"] += choice.get("tokens", [])
            whole["logprobs"] += [choice["logprobs"]] if choice["logprobs"] else []
            whole.setdefault("first", sorted(delta))
            whole["reason"] = (choice["reason"], choice["finish_reason"])
            if whole["reason"] == (None, None):
                del whole["reason"]
    return result


STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", CAT),
    "usage": ("/v1/completions", {**CAT, "stream_options": {"include_usage": True}}),
    "several": ("/v1/completions", {**CAT, "prompt": ["the cat", "mice"], "n": 3}),
    "stop": ("/v1/completions", {**CAT, "max_tokens": 40, "stop": ["a", "e "]}),
    "echo": ("/v1/completions", {**CAT, "echo": True}),
    "tokens": ("/v1/completions", {**CAT, "tokens": True}),
    "chat": ("/v1/chat/completions", {**CHAT, "seed": 1}),
    "refused": ("/v1/completions", {**CAT, "prompt": [99999]}),
    "an unknown model": ("/v1/completions", {**CAT, "model": "nobody"}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_stream(server: Running, apart: Separated, name: str) -> None:
    path, body = STREAMS[name]
    separate = merged(apart.url, path, body)
    together = merged(server.url, path, body)
    for result in (separate, together):
        for choice in result.get("choices", {}).values():
            choice["logprobs"] = [token for part in choice["logprobs"] for token in part["tokens"]]
    assert separate == together


def test_keys_are_checked_by_the_front_end(host: ModelHost) -> None:
    with separated(host, AccessRules(keys=("a-secret-key",))) as server:
        assert ask(server.url, "POST", "/v1/completions", CAT).status_code == 401
        answer = ask(
            server.url, "POST", "/v1/completions", CAT, authorization="Bearer a-secret-key"
        )
        assert answer.status_code == 200
        assert ask(server.url, "GET", "/health").status_code == 200


def test_a_response_is_counted_without_a_further_request() -> None:
    """Another front end may be asked for the metrics."""

    async def count_one() -> tuple[Kind, Any]:
        sent: asyncio.Future[tuple[Kind, Any]] = asyncio.get_running_loop().create_future()
        channel = SimpleNamespace(send_soon=lambda *frame: sent.set_result(frame))
        host: Any = SimpleNamespace(channel=channel)
        metrics = RemoteMetrics(host)
        metrics.count("/v1/completions", 200, 0.5)
        assert not sent.done()
        frame = await sent
        assert metrics.timer is None
        return frame

    kind, value = asyncio.run(count_one())
    assert kind is Kind.COUNTS
    assert value == (0.0, [("/v1/completions", 200, 0.5)])


def test_the_metrics_count_the_responses_of_the_front_end(apart: Separated) -> None:
    def counted() -> float:
        name = 'qkv_http_requests_total{route="/v1/completions",status="200"}'
        for line in ask(apart.url, "GET", "/metrics").text.splitlines():
            if line.startswith(name):
                return float(line.rpartition(" ")[2])
        return 0.0

    before = counted()
    for _ in range(3):
        assert ask(apart.url, "POST", "/v1/completions", CAT).status_code == 200
    until(lambda: counted() == before + 3)
    assert ask(apart.url, "GET", "/v1/models/gpt").status_code == 200
    until(lambda: "/v1/models/{name}" in ask(apart.url, "GET", "/metrics").text)
    text = ask(apart.url, "GET", "/metrics").text
    assert 'qkv_http_requests_total{route="/v1/models/{name}",status="200"}' in text
    until(  # the one before may not have ended there
        lambda: "qkv_http_requests_running 1.0" in ask(apart.url, "GET", "/metrics").text
    )


def wire(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


def connected(port: int, body: dict[str, Any]) -> socket.socket:
    """A client that has sent a request."""
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    line.sendall(wire(body))
    return line


def rest_of(line: socket.socket) -> bytes:
    """What arrives until the connection is closed."""
    got = b""
    try:
        while more := line.recv(65536):
            got += more
    except ConnectionResetError:
        pass
    return got


@pytest.fixture(scope="module")
def crowd(models: Models) -> Iterator[ModelHost]:
    """A host with room for many requests."""
    host = hosting(
        {"gpt": models["gpt"], "long": models["long"]}, rows=64, queue=2000, cache=16 << 20
    )
    yield host
    host.close()


@pytest.fixture
def gate(crowd: ModelHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(crowd, monkeypatch)
    yield gate
    gate.open.set()


def test_1000_abandoned_streams_leave_nothing_behind(crowd: ModelHost) -> None:
    async def vanish(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({**LONG, "stream": number % 4 > 0, "seed": number}))
        await writer.drain()
        if number % 50 == 1:  # these have started; the others may still wait
            assert await reader.readuntil(b"data: ")
        if number % 2:
            writer.transport.abort()
        else:
            writer.close()

    async def in_groups(port: int) -> None:
        for begin in range(0, 1000, 100):
            group = range(begin, begin + 100)
            await asyncio.gather(*(vanish(port, number) for number in group))

    with separated(crowd) as server:
        asyncio.run(in_groups(server.port))
        until(lambda: empty(crowd) and not server.handles)
        assert ask(server.url, "POST", "/v1/completions", CAT).status_code == 200


def test_a_reader_that_does_not_read_delays_no_other(crowd: ModelHost) -> None:
    """The other client gets its whole response while the first has read nothing."""
    with separated(crowd) as server:
        lazy = connected(server.port, {**LONG, "stream": True})
        assert lazy.recv(12) == b"HTTP/1.1 200"
        for _ in range(3):
            assert ask(server.url, "POST", "/v1/completions", CAT).status_code == 200
        lazy.close()
        until(lambda: empty(crowd))


def test_a_client_that_closes_its_half_is_treated_alike(crowd: ModelHost, server: Running) -> None:
    def half_closed(port: int) -> bytes:
        with connected(port, LONG) as line:  # its response takes longer than the next call
            line.shutdown(socket.SHUT_WR)
            return rest_of(line)[:12]

    with separated(crowd) as other:
        assert half_closed(other.port) == half_closed(server.port)
        until(lambda: not other.handles)


def test_draining_finishes_running_requests(crowd: ModelHost, gate: Gate) -> None:
    with separated(crowd, drain=PATIENCE) as server:
        body = {**LONG, "max_tokens": 300, "min_tokens": 300, "stream": True}
        line = connected(server.port, body)
        assert line.recv(12) == b"HTTP/1.1 200"
        server.service.drain()
        until(lambda: ask(server.url, "GET", "/v1/models").status_code == 503)
        gate.open.set()
        assert b"[DONE]" in rest_of(line)
        assert server.ended() == 0


def test_the_second_signal_stops_at_once(crowd: ModelHost, gate: Gate) -> None:
    with separated(crowd, drain=PATIENCE) as server:
        line = connected(server.port, {**LONG, "stream": True})
        assert line.recv(12) == b"HTTP/1.1 200"
        server.service.drain()
        until(lambda: ask(server.url, "GET", "/v1/models").status_code == 503)
        server.service.drain()
        assert server.ended() == 130
        assert b"[DONE]" not in rest_of(line)
        gate.open.set()
        until(lambda: empty(crowd))


def test_a_front_end_that_is_killed_ends_the_server(crowd: ModelHost) -> None:
    with separated(crowd) as server:
        line = connected(server.port, {**LONG, "stream": True})
        assert line.recv(12) == b"HTTP/1.1 200"
        os.kill(server.children[0].pid, signal.SIGKILL)
        assert server.ended() == -signal.SIGKILL
        assert b"[DONE]" not in rest_of(line)
        until(lambda: empty(crowd) and not server.handles)


def test_several_front_ends_share_the_connections(crowd: ModelHost) -> None:
    """If one of them is killed, all end."""
    with separated(crowd, count=2) as server:
        lines = [connected(server.port, {**LONG, "stream": True}) for _ in range(12)]
        for line in lines:
            assert line.recv(12) == b"HTTP/1.1 200"
        assert ask(server.url, "POST", "/v1/completions", CAT).status_code == 200
        assert "qkv_http_requests_running" in ask(server.url, "GET", "/metrics").text
        os.kill(server.children[1].pid, signal.SIGKILL)
        assert server.ended() == -signal.SIGKILL
        for line in lines:
            assert b"[DONE]" not in rest_of(line)
        until(lambda: empty(crowd) and not server.handles)
        assert server.children[0].returncode == 0


def test_a_failed_engine_answers_open_requests_and_stops_the_front_end(models: Models) -> None:
    host = hosting({"long": models["long"]})
    with separated(host) as server:
        host.on_failure = server.service.stop
        engine = host.entries["long"].engine
        assert engine is not None
        whole = connected(server.port, LONG)
        until(lambda: engine.scheduler.running)

        def fails() -> bool:
            raise SystemExit

        host.run_step = fails  # type: ignore[method-assign]
        answer = rest_of(whole)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"its engine has failed" in answer
        assert server.ended() == 0


def test_a_model_that_is_added_later(crowd: ModelHost, models: Models) -> None:
    host = hosting({"gpt": models["gpt"]})
    may_load = threading.Event()

    def load() -> Any:
        assert may_load.wait(PATIENCE)
        return models["long"]

    with separated(host) as server:
        body = {**CAT, "model": "late"}
        assert ask(server.url, "POST", "/v1/completions", body).status_code == 404
        host.add("late", load)
        assert ask(server.url, "POST", "/v1/completions", body).status_code == 503
        may_load.set()
        until(lambda: ask(server.url, "POST", "/v1/completions", body).status_code == 200)
    host.close()
