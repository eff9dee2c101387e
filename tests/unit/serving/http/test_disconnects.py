"""Many clients, clients that disconnect or do not read, and a server that drains and stops."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest
from rich.console import Console

from qkv.commands import serve
from qkv.generation.text import complete
from qkv.serving.http.app import create_app
from qkv.serving.http.connection import Connection
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.prometheus import ServerMetrics
from qkv.serving.http.server import Server, bind_socket
from qkv.serving.model_host import ModelHost
from support.holding import Gate, empty
from support.serving_fixtures import Models
from support.small_server import IMPLEMENTATIONS, Running, hosting, running
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("without_shape_checks")
LONG = {"model": "long", "prompt": "the cat", "max_tokens": 4000, "min_tokens": 4000}


@pytest.fixture(scope="module")
def crowd(models: Models) -> Iterator[ModelHost]:
    """A host with room for many requests."""
    host = hosting(
        {"gpt": models["gpt"], "long": models["long"]}, rows=64, queue=500, cache=16 << 20
    )
    yield host
    host.close()


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> dict[str, str]:
    return IMPLEMENTATIONS[request.param]


def wire(body: dict[str, Any], route: str = "completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


@pytest.fixture
def gate(crowd: ModelHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(crowd, monkeypatch)
    yield gate
    gate.open.set()


def streamed_text(response: bytes) -> str:
    """The text of a stream that is complete."""
    assert response.startswith(b"HTTP/1.1 200"), response[:300]
    lines = [line for line in response.splitlines() if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


def test_500_streams_at_once_equal_their_solo_runs(crowd: ModelHost, models: Models) -> None:
    model, tokenizer = models["gpt"]
    prompts = ("the cat", "mice", "", "a teacher said")
    requests = [(prompt, seed) for prompt in prompts for seed in range(5)]
    solo = {
        (prompt, seed): complete(model, tokenizer, [prompt], length=6, seed=seed)[0]
        for prompt, seed in requests
    }

    async def one(port: int, prompt: str, seed: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            wire({"model": "gpt", "prompt": prompt, "seed": seed, "max_tokens": 6, "stream": True})
        )
        response = await reader.read()
        writer.close()
        return streamed_text(response)

    async def all_at_once(port: int) -> list[str]:
        return await asyncio.gather(
            *(one(port, *requests[number % len(requests)]) for number in range(500))
        )

    with running(crowd) as server:
        texts = asyncio.run(all_at_once(server.port))
        assert texts == [solo[requests[number % len(requests)]] for number in range(500)]
        metrics = crowd.entries["gpt"].metrics()
        assert (metrics["blocks_used"], metrics["running"], metrics["waiting"]) == (0, 0, 0)
        until(lambda: not server.app.running)


def test_200_clients_that_disconnect_leave_nothing_behind(
    crowd: ModelHost, implementation: dict[str, str]
) -> None:
    before = crowd.entries["long"].metrics()["cancelled"]

    async def vanish(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({**LONG, "stream": True, "seed": number}))
        await writer.drain()
        if number < 32:  # these have started; the others may still wait
            assert await reader.readuntil(b"data: ")
        writer.transport.abort()

    async def all_at_once(port: int) -> None:
        await asyncio.gather(*(vanish(port, number) for number in range(200)))

    with running(crowd, **implementation) as server:
        asyncio.run(all_at_once(server.port))
        until(lambda: empty(crowd) and not server.app.running)
        assert crowd.entries["long"].metrics()["cancelled"] > before
        answer = httpx.post(
            f"{server.url}/v1/completions",
            json={**LONG, "max_tokens": 3, "min_tokens": 0},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200


def test_a_client_that_has_sent_two_requests_disconnects(
    crowd: ModelHost, implementation: dict[str, str]
) -> None:
    """The first one learns of it although uvicorn has parsed the second."""
    first = wire({**LONG, "stream": True}).replace(b"Connection: close\r\n", b"")
    with running(crowd, **implementation) as server:
        line = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        line.sendall(first + first)
        assert line.recv(64).startswith(b"HTTP/1.1 200")
        line.close()
        until(lambda: empty(crowd) and not server.app.running)


def test_a_client_that_disconnects_before_its_response(
    crowd: ModelHost, implementation: dict[str, str], gate: Gate
) -> None:
    """Nothing is streamed, so nothing is written: only the connection shows that it is gone."""
    before = crowd.entries["long"].metrics()["cancelled"]
    with running(crowd, **implementation) as server:
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(wire(LONG))
        assert gate.closed.wait(PATIENCE)
        assert crowd.entries["long"].metrics()["running"] == 1
        line.close()
        until(lambda: not server.app.running)
        gate.open.set()
        until(lambda: empty(crowd))
    assert crowd.entries["long"].metrics()["cancelled"] == before + 1


def test_a_client_that_reads_nothing_delays_no_other(
    crowd: ModelHost, implementation: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is generated into a queue; then its connection is cut and its buffer dropped."""
    monkeypatch.setattr("qkv.serving.http.sse.STALLED", 0.3)
    before = crowd.entries["long"].metrics()["steps"]
    with running(crowd, buffer=8192, **implementation) as server, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(
            wire({**LONG, "max_tokens": 150, "min_tokens": 150, "stream": True, "logprobs": 20})
        )
        until(lambda: crowd.entries["long"].metrics()["steps"] > before)
        quick = {"model": "gpt", "prompt": "the cat", "max_tokens": 3}
        assert (
            httpx.post(f"{server.url}/v1/completions", json=quick, timeout=PATIENCE).status_code
            == 200
        )
        until(lambda: empty(crowd) and not server.app.running)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.recv(65536):
                got += more
        assert got.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in got


def test_a_client_that_does_not_read_a_whole_response_is_cut_off(
    crowd: ModelHost, implementation: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of the response that the system does not buffer is not kept forever."""
    body = {"model": "gpt", "text": "the cat " * 30_000}
    with running(crowd, buffer=8192, **implementation) as server, socket.socket() as line:
        close = {"connection": "close"}
        whole = httpx.post(f"{server.url}/v1/tokenize", json=body, headers=close, timeout=PATIENCE)
        assert whole.json()["count"] > 60_000
        until(lambda: not server.server.server_state.connections)
        monkeypatch.setattr("qkv.serving.http.sse.STALLED", 0.1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(wire(body, "tokenize"))
        assert line.recv(64).startswith(b"HTTP/1.1 200")
        until(lambda: not server.server.server_state.connections)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.recv(65536):
                got += more
        assert len(got) < len(whole.content) // 2


def test_a_client_that_reads_is_not_cut_off() -> None:
    """Reading half of the rest in each interval is enough."""
    later: list[tuple[float, Callable[..., None], int]] = []
    left, aborted = iter([1000, 500, 250, 0]), []
    fake = SimpleNamespace(
        transport=SimpleNamespace(
            get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
        ),
        loop=SimpleNamespace(call_later=lambda *arguments: later.append(arguments)),
    )
    fake.wait_for_reader = partial(Connection.wait_for_reader, fake)
    fake.wait_for_reader(None)
    for _ in range(3):
        _, check, before = later.pop()
        check(before)
    assert not later
    assert not aborted
    left = iter([1000, 501])
    fake.wait_for_reader(None)
    _, check, before = later.pop()
    check(before)
    assert aborted
    assert not later


def test_a_client_that_does_not_complete_its_headers_is_cut_off(
    crowd: ModelHost, implementation: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.http.connection.HEADERS_SECONDS", PATIENCE)
    half = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: "
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    gone = (ConnectionResetError, BrokenPipeError)
    with running(crowd, **implementation) as server:
        address = ("127.0.0.1", server.port)
        busy, again = (socket.create_connection(address, timeout=PATIENCE) for _ in range(2))
        busy.sendall(wire({**LONG, "max_tokens": 150, "min_tokens": 150}))
        again.sendall(health)
        response = b""
        while not response.endswith(b"}}}"):
            response += again.recv(65536)
        until(lambda: server.app.running)  # the request of busy is complete
        monkeypatch.setattr("qkv.serving.http.connection.HEADERS_SECONDS", 0.1)
        silent, slow = (socket.create_connection(address, timeout=PATIENCE) for _ in range(2))
        with contextlib.suppress(*gone):
            slow.sendall(half)
        again.sendall(half)  # of its second request
        for line in (silent, slow, again):
            with contextlib.suppress(*gone):
                assert line.recv(65536) == b""
        response = b"".join(iter(lambda: busy.recv(65536), b""))
        assert b'"finish_reason":"length"' in response  # a waiting client is not cut off
        for line in (busy, again, silent, slow):
            line.close()


def test_an_exception_in_one_request_does_not_affect_the_others(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream fails and ends with an error event; the other one is complete."""
    from qkv.serving.routes import completions

    real = completions.CompletionStream.chunk_event

    def broken(self: Any, index: int, chunk: Any) -> Any:
        if self.body.user == "broken" and self.generated > 2:
            raise RuntimeError("an unexpected error")
        return real(self, index, chunk)

    monkeypatch.setattr(completions.CompletionStream, "chunk_event", broken)
    body = {
        "model": "long",
        "prompt": "the cat",
        "max_tokens": 50,
        "min_tokens": 50,
        "stream": True,
        "seed": 1,
    }
    body |= {"stream_options": {"include_usage": True}}
    with running(crowd) as server:
        texts: dict[str, str] = {}

        def listen(user: str) -> None:
            texts[user] = httpx.post(
                f"{server.url}/v1/completions", json={**body, "user": user}, timeout=PATIENCE
            ).text

        threads = [threading.Thread(target=listen, args=(user,)) for user in ("broken", "whole")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts["whole"].endswith("data: [DONE]\n\n")
        assert '"completion_tokens":50' in texts["whole"]
        last = json.loads(texts["broken"].strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "internal_error"
        assert "[DONE]" not in texts["broken"]
        until(lambda: empty(crowd))


def test_a_second_signal_stops_the_server_at_once(crowd: ModelHost, gate: Gate) -> None:
    """After the first signal a stream continues and new requests are refused."""

    async def run_server() -> tuple[int, int, str, bytes]:
        server, listening = Server(create_app(crowd), drain=PATIENCE), bind_socket("127.0.0.1", 0)
        port = listening.getsockname()[1]
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({**LONG, "stream": True}))
        await reader.readuntil(b"data: ")
        os.kill(os.getpid(), signal.SIGTERM)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
            refused = await http.post("/v1/completions", json=LONG)
            health = await http.get("/health")
        os.kill(os.getpid(), signal.SIGTERM)
        rest = await reader.read()
        writer.close()
        await asyncio.wait_for(serving, PATIENCE)
        assert int(refused.headers["retry-after"]) >= 1
        return refused.status_code, health.status_code, health.json()["status"], rest

    *statuses, rest = asyncio.run(run_server())
    assert statuses == [503, 503, "draining"]
    assert b"[DONE]" not in rest
    assert b'"message":"the server is stopping' in rest
    gate.open.set()
    until(lambda: empty(crowd))


def test_a_request_that_outlasts_draining_gets_a_503(crowd: ModelHost, gate: Gate) -> None:
    """A request whose response has not started gets one when draining is over."""
    server = Running(crowd, drain=0.2)
    responses: list[httpx.Response] = []

    def complete_late() -> None:
        responses.append(httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE))

    client = threading.Thread(target=complete_late)
    client.start()
    assert gate.closed.wait(PATIENCE)
    server.server.handle_exit(signal.SIGTERM, None)
    client.join(PATIENCE)
    server.thread.join(PATIENCE)
    assert (responses[0].status_code, responses[0].json()["error"]["type"]) == (
        503,
        "unavailable_error",
    )
    assert not server.thread.is_alive()
    gate.open.set()
    until(lambda: empty(crowd))


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_request_is_told_that_the_server_stops_only_if_it_does(
    stopping: bool, started: bool
) -> None:
    """Otherwise a cancellation is an unexpected error."""
    sent: list[Any] = []

    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        app.draining = stopping
        if started:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise asyncio.CancelledError

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    app = RequestMiddleware(cancelled, AccessRules(names=None), ServerMetrics(ModelHost()))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "http_version": "1.1",
        "client": None,
    }
    asyncio.run(app(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent)
    assert (b"the server is stopping" in content) == stopping
    status = 503 if stopping else 500
    assert sent[0]["status"] == (200 if started else status)


def test_the_process_ends_some_seconds_after_draining(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the event loop is stuck."""
    monkeypatch.setattr("qkv.serving.http.server.LAST_SECONDS", 0.01)
    for end in ("handle_exit", "stop"):
        ended = threading.Event()
        server = Server(create_app(crowd), drain=0.0, at_once=ended.set)
        server.handle_exit(signal.SIGTERM, None) if end == "handle_exit" else server.stop()
        assert ended.wait(PATIENCE)


@pytest.mark.parametrize(
    ("failure", "signalled", "code", "reason"),
    [
        (
            "the engine's thread ended (MemoryError)",
            False,
            1,
            "qkv: the engine's thread ended (MemoryError); no model",
        ),
        (
            "the engine's thread ended (MemoryError)",
            True,
            1,
            "qkv: the engine's thread ended (MemoryError); no model",
        ),
        (None, False, 130, "qkv: draining took too long; requests that still ran were cut off"),
        (None, True, 130, ""),
    ],
)
def test_an_early_end_has_the_exit_code_and_the_reason_of_its_cause(
    monkeypatch: pytest.MonkeyPatch, failure: str | None, signalled: bool, code: int, reason: str
) -> None:
    def left(_: Console, code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(serve, "leave", left)
    host, printed = ModelHost(), io.StringIO()
    host.failure = failure
    with pytest.raises(SystemExit) as ended:
        serve.end_early(Console(file=printed, width=200), host, signalled=signalled)
    assert ended.value.code == code
    assert printed.getvalue().startswith(reason)
    assert bool(printed.getvalue()) == bool(reason)
