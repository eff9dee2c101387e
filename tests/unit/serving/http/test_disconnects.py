"""Many clients, clients that vanish, clients that do not read, and a server that is asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
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
from qkv.serving.http.app import served
from qkv.serving.http.connection import Connection
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.prometheus import ServerCounters
from qkv.serving.http.server import Server, bound
from qkv.serving.model_host import ModelHost
from support.serving_fixtures import Models
from support.small_server import Running, hosting, running
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("without_shape_checks")
LONG = {"model": "long", "prompt": "the cat", "max_tokens": 4000, "min_tokens": 4000}


@pytest.fixture(scope="module")
def crowd(models: Models) -> Iterator[ModelHost]:
    """With room for a crowd."""
    host = hosting(
        {"gpt": models["gpt"], "long": models["long"]}, rows=64, queue=500, cache=16 << 20
    )
    yield host
    host.close()


def wire(body: dict[str, Any], route: str = "completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


class Gate:
    """Lets the engine make some steps of a model, and holds it in the next one until it is open."""

    def __init__(self, host: ModelHost, monkeypatch: pytest.MonkeyPatch, steps: int = 3) -> None:
        self.closed, self.open = threading.Event(), threading.Event()
        engine = host.entries["long"].engine
        assert engine is not None
        real, left = engine.run, itertools.count(steps, -1)

        def gated(batch: Any) -> Any:
            if next(left) <= 0:
                self.closed.set()
                assert self.open.wait(PATIENCE)
            return real(batch)

        monkeypatch.setattr(engine, "run", gated)


@pytest.fixture
def gate(crowd: ModelHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(crowd, monkeypatch)
    yield gate
    gate.open.set()


def empty(host: ModelHost) -> bool:
    numbers = host.entries["long"].metrics()
    return (numbers["running"], numbers["waiting"], numbers["blocks_used"]) == (0, 0, 0)


def said(response: bytes) -> str:
    """The text of a stream that is complete."""
    assert response.startswith(b"HTTP/1.1 200"), response[:300]
    lines = [line for line in response.split(b"\r\n") if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


def test_500_streams_at_once_each_equal_to_its_solo_run(crowd: ModelHost, models: Models) -> None:
    model, tokenizer = models["gpt"]
    asks = [
        (prompt, seed) for prompt in ("the cat", "mice", "", "a teacher said") for seed in range(5)
    ]
    solo = {
        (prompt, seed): complete(model, tokenizer, [prompt], length=6, seed=seed)[0]
        for prompt, seed in asks
    }

    async def one(port: int, prompt: str, seed: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            wire({"model": "gpt", "prompt": prompt, "seed": seed, "max_tokens": 6, "stream": True})
        )
        answer = await reader.read()
        writer.close()
        return said(answer)

    async def all_at_once(port: int) -> list[str]:
        return await asyncio.gather(
            *(one(port, *asks[number % len(asks)]) for number in range(500))
        )

    with running(crowd) as server:
        found = asyncio.run(all_at_once(server.port))
        assert found == [solo[asks[number % len(asks)]] for number in range(500)]
        numbers = crowd.entries["gpt"].metrics()
        assert (numbers["blocks_used"], numbers["running"], numbers["waiting"]) == (0, 0, 0)
        until(lambda: not server.app.running)


def test_200_clients_vanish_and_leave_nothing_behind(crowd: ModelHost) -> None:
    before = crowd.entries["long"].metrics()["cancelled"]

    async def vanish(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({**LONG, "stream": True, "seed": number}))
        await writer.drain()
        if number < 32:  # these have begun; the others may still wait
            assert await reader.readuntil(b"data: ")
        writer.transport.abort()

    async def all_at_once(port: int) -> None:
        await asyncio.gather(*(vanish(port, number) for number in range(200)))

    with running(crowd) as server:
        asyncio.run(all_at_once(server.port))
        until(lambda: empty(crowd) and not server.app.running)
        assert crowd.entries["long"].metrics()["cancelled"] > before
        answer = httpx.post(
            f"{server.url}/v1/completions",
            json={**LONG, "max_tokens": 3, "min_tokens": 0},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200


def test_a_client_that_leaves_before_its_answer_is_made(crowd: ModelHost, gate: Gate) -> None:
    """Nothing is streamed, so nothing is written: only its line says that it is gone."""
    before = crowd.entries["long"].metrics()["cancelled"]
    with running(crowd) as server:
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(wire(LONG))
        assert gate.closed.wait(PATIENCE)
        assert crowd.entries["long"].metrics()["running"] == 1
        line.close()
        until(lambda: not server.app.running)
        gate.open.set()
        until(lambda: empty(crowd))
    assert crowd.entries["long"].metrics()["cancelled"] == before + 1


def test_a_client_that_reads_nothing_holds_nobody_up(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is said into a queue as long as the text; then its line is cut, with all that is
    buffered for it.
    """
    monkeypatch.setattr("qkv.serving.http.sse.STALLED", 0.3)
    before = crowd.entries["long"].metrics()["steps"]
    with running(crowd, buffer=8192) as server, socket.socket() as line:
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


def test_a_client_that_does_not_take_a_whole_answer_is_let_go(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was made and handed to the system, as far as that takes it; the rest is not kept
    for good.
    """
    ask = {"model": "gpt", "text": "the cat " * 30_000}
    with running(crowd, buffer=8192) as server, socket.socket() as line:
        close = {"connection": "close"}
        whole = httpx.post(f"{server.url}/v1/tokenize", json=ask, headers=close, timeout=PATIENCE)
        assert whole.json()["count"] > 60_000
        until(lambda: not server.server.server_state.connections)
        monkeypatch.setattr("qkv.serving.http.sse.STALLED", 0.1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(wire(ask, "tokenize"))
        assert line.recv(64).startswith(b"HTTP/1.1 200")
        until(lambda: not server.server.server_state.connections)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.recv(65536):
                got += more
        assert len(got) < len(whole.content) // 2


def test_a_client_that_reads_is_not_let_go() -> None:
    """Whoever takes half of what is left in each while may go on."""
    later: list[tuple[float, Callable[..., None], int]] = []
    left, aborted = iter([1000, 500, 250, 0]), []
    fake = SimpleNamespace(
        transport=SimpleNamespace(
            get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
        ),
        loop=SimpleNamespace(call_later=lambda *given: later.append(given)),
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


def test_a_client_that_does_not_say_what_it_wants_is_let_go(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.http.connection.HEADERS_SECONDS", PATIENCE)
    half = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: "
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    gone = (ConnectionResetError, BrokenPipeError)
    with running(crowd) as server:
        address = ("127.0.0.1", server.port)
        busy, again = (socket.create_connection(address, timeout=PATIENCE) for _ in range(2))
        busy.sendall(wire({**LONG, "max_tokens": 150, "min_tokens": 150}))
        again.sendall(health)
        told = b""
        while not told.endswith(b"}}}"):
            told += again.recv(65536)
        until(lambda: server.app.running)  # busy has said what it wants
        monkeypatch.setattr("qkv.serving.http.connection.HEADERS_SECONDS", 0.1)
        silent, slow = (socket.create_connection(address, timeout=PATIENCE) for _ in range(2))
        with contextlib.suppress(*gone):
            slow.sendall(half)
        again.sendall(half)  # of its second request
        for line in (silent, slow, again):
            with contextlib.suppress(*gone):
                assert line.recv(65536) == b""
        assert b'"finish_reason":"length"' in b"".join(
            iter(lambda: busy.recv(65536), b"")
        )  # whoever waits is not
        for line in (busy, again, silent, slow):
            line.close()


def test_an_exception_inside_one_request_does_not_touch_the_others(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream breaks while it is told: it ends with an error; the one beside it is whole."""
    from qkv.serving.routes import completions

    real = completions.CompletionStream.choice

    def broken(self: Any, index: int, chunk: Any) -> Any:
        if self.asked.user == "broken" and self.said > 2:
            raise RuntimeError("nobody foresaw it")
        return real(self, index, chunk)

    monkeypatch.setattr(completions.CompletionStream, "choice", broken)
    ask = {
        "model": "long",
        "prompt": "the cat",
        "max_tokens": 50,
        "min_tokens": 50,
        "stream": True,
        "seed": 1,
    }
    ask |= {"stream_options": {"include_usage": True}}
    with running(crowd) as server:
        found: dict[str, str] = {}

        def listen(user: str) -> None:
            found[user] = httpx.post(
                f"{server.url}/v1/completions", json={**ask, "user": user}, timeout=PATIENCE
            ).text

        threads = [threading.Thread(target=listen, args=(user,)) for user in ("broken", "whole")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found["whole"].endswith("data: [DONE]\n\n")
        assert '"completion_tokens":50' in found["whole"]
        last = json.loads(found["broken"].strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "internal_error"
        assert "[DONE]" not in found["broken"]
        until(lambda: empty(crowd))


def test_two_signals_end_it_at_once(crowd: ModelHost, gate: Gate) -> None:
    """The first lets a stream go on and refuses what is new; the second ends all."""

    async def live() -> tuple[int, int, str, bytes]:
        server, listening = Server(served(crowd), drain=PATIENCE), bound("127.0.0.1", 0)
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

    *told, rest = asyncio.run(live())
    assert told == [503, 503, "draining"]
    assert b"[DONE]" not in rest
    assert b'"message":"the server is leaving' in rest
    gate.open.set()
    until(lambda: empty(crowd))


def test_what_is_late_to_finish_is_told_so(crowd: ModelHost, gate: Gate) -> None:
    """When the time to leave is over, a request whose answer has not begun gets one all the same."""
    server = Running(crowd, drain=0.2)
    found: list[httpx.Response] = []

    def ask() -> None:
        found.append(httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE))

    asking = threading.Thread(target=ask)
    asking.start()
    assert gate.closed.wait(PATIENCE)
    server.server.handle_exit(signal.SIGTERM, None)
    asking.join(PATIENCE)
    server.thread.join(PATIENCE)
    assert (found[0].status_code, found[0].json()["error"]["type"]) == (503, "unavailable_error")
    assert not server.thread.is_alive()
    gate.open.set()
    until(lambda: empty(crowd))


@pytest.mark.parametrize("leaving", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_request_is_told_that_the_server_leaves_only_if_it_does(
    leaving: bool, started: bool
) -> None:
    """Else a cancellation is an error like any other."""
    sent: list[Any] = []

    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        door.draining = leaving
        if started:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise asyncio.CancelledError

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    door = RequestMiddleware(cancelled, AccessRules(names=None), ServerCounters())
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "http_version": "1.1",
        "client": None,
    }
    asyncio.run(door(scope, receive, send))
    said = b"".join(message.get("body", b"") for message in sent)
    assert (b"the server is leaving" in said) == leaving
    assert sent[0]["status"] == (200 if started else 503 if leaving else 500)


def test_the_process_ends_some_seconds_after_draining_whatever_still_runs(
    crowd: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the event loop itself never comes back."""
    monkeypatch.setattr("qkv.serving.http.server.LAST_SECONDS", 0.01)
    for end in ("handle_exit", "stop"):
        ended = threading.Event()
        server = Server(served(crowd), drain=0.0, at_once=ended.set)
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
