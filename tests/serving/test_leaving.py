"""Many clients, clients that vanish, clients that do not read, and a server that is asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from qkv.generation.text import complete
from qkv.serving.app import served
from qkv.serving.host import Host
from qkv.serving.server import Server, bound
from serving.conftest import Models
from serving.small_server import Running, hosting, running

LONG = {"model": "long", "prompt": "the cat", "max_tokens": 4000, "min_tokens": 4000}


@pytest.fixture(scope="module")
def crowd(models: Models) -> Iterator[Host]:
    """With room for a crowd."""
    host = hosting({"gpt": models["gpt"], "long": models["long"]}, rows=64, queue=500, cache=16 << 20)
    yield host
    host.close()


def wire(body: dict[str, Any], route: str = "completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def empty(host: Host) -> bool:
    numbers = host.served["long"].numbers()
    return (numbers["running"], numbers["waiting"], numbers["blocks_used"]) == (0, 0, 0)


def said(response: bytes) -> str:
    """The text of a stream that is complete."""
    assert response.startswith(b"HTTP/1.1 200"), response[:300]
    lines = [line for line in response.split(b"\r\n") if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


def test_500_streams_at_once_each_equal_to_its_solo_run(crowd: Host, models: Models) -> None:
    model, tokenizer = models["gpt"]
    asks = [(prompt, seed) for prompt in ("the cat", "mice", "", "a teacher said") for seed in range(5)]
    solo = {(prompt, seed): complete(model, tokenizer, [prompt], length=6, seed=seed)[0] for prompt, seed in asks}

    async def one(port: int, prompt: str, seed: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({"model": "gpt", "prompt": prompt, "seed": seed, "max_tokens": 6, "stream": True}))
        answer = await reader.read()
        writer.close()
        return said(answer)

    async def all_at_once(port: int) -> list[str]:
        return await asyncio.gather(*(one(port, *asks[number % len(asks)]) for number in range(500)))

    with running(crowd) as server:
        found = asyncio.run(all_at_once(server.port))
        assert found == [solo[asks[number % len(asks)]] for number in range(500)]
        numbers = crowd.served["gpt"].numbers()
        assert (numbers["blocks_used"], numbers["running"], numbers["waiting"]) == (0, 0, 0)
        until(lambda: not server.door.running)


def test_200_clients_vanish_and_leave_nothing_behind(crowd: Host) -> None:
    before = crowd.served["long"].numbers()["cancelled"]

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
        until(lambda: empty(crowd) and not server.door.running)
        assert crowd.served["long"].numbers()["cancelled"] > before
        answer = httpx.post(f"{server.url}/v1/completions", json={**LONG, "max_tokens": 3, "min_tokens": 0})
        assert answer.status_code == 200


def test_a_client_that_leaves_before_its_answer_is_made(crowd: Host) -> None:
    """Nothing is streamed, so nothing is written: only its line says that it is gone."""
    before = crowd.served["long"].numbers()["cancelled"]
    with running(crowd) as server:
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(wire(LONG))
        until(lambda: crowd.served["long"].numbers()["running"] == 1)
        line.close()
        until(lambda: empty(crowd) and not server.door.running)
    assert crowd.served["long"].numbers()["cancelled"] == before + 1


def test_a_client_that_reads_nothing_holds_nobody_up(crowd: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is said into a queue as long as the text; then its line is cut, with all that is buffered for it."""
    monkeypatch.setattr("qkv.serving.listening.STALLED", 0.3)
    with running(crowd, buffer=8192) as server, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(wire({**LONG, "max_tokens": 150, "min_tokens": 150, "stream": True, "logprobs": 20}))
        until(lambda: crowd.served["long"].numbers()["running"] == 1)
        quick = {"model": "gpt", "prompt": "the cat", "max_tokens": 3}
        assert httpx.post(f"{server.url}/v1/completions", json=quick).status_code == 200
        until(lambda: empty(crowd) and not server.door.running)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.recv(65536):
                got += more
        assert got.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in got


def test_a_client_that_does_not_take_a_whole_answer_is_let_go(crowd: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was made and handed to the system, as far as that takes it; the rest is not kept for good."""
    monkeypatch.setattr("qkv.serving.listening.STALLED", 0.5)
    ask = {"model": "gpt", "text": "the cat " * 30_000}
    with running(crowd, buffer=8192) as server, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(wire(ask, "tokenize"))
        assert line.recv(64).startswith(b"HTTP/1.1 200")
        whole = httpx.post(f"{server.url}/v1/tokenize", json=ask, headers={"connection": "close"})
        assert whole.json()["count"] > 60_000  # whoever reads is not cut
        until(lambda: not server.server.server_state.connections)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.recv(65536):
                got += more
        assert len(got) < len(whole.content) // 2


def test_a_client_that_does_not_say_what_it_wants_is_let_go(crowd: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.serving.connection.HEADERS_SECONDS", 0.3)
    half = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: "
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(crowd) as server:
        lines = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(4)]
        silent, slow, again, busy = lines
        slow.sendall(half)
        again.sendall(health)
        told = b""
        while not told.endswith(b"}}}"):
            told += again.recv(65536)
        again.sendall(half)  # of its second request
        busy.sendall(wire({**LONG, "max_tokens": 150, "min_tokens": 150}))
        for line in (silent, slow, again):
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(65536) == b""
        assert b'"finish_reason":"length"' in b"".join(iter(lambda: busy.recv(65536), b""))  # whoever waits is not
        for line in lines:
            line.close()


def test_an_exception_inside_one_request_does_not_touch_the_others(
    crowd: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream breaks while it is told: it ends with an error; the one beside it is whole."""
    from qkv.serving import completions

    real = completions.Telling.choice

    def broken(self: Any, index: int, piece: Any) -> Any:
        if self.asked.user == "broken" and self.said > 2:
            raise RuntimeError("nobody foresaw it")
        return real(self, index, piece)

    monkeypatch.setattr(completions.Telling, "choice", broken)
    ask = {"model": "long", "prompt": "the cat", "max_tokens": 50, "min_tokens": 50, "stream": True, "seed": 1}
    ask |= {"stream_options": {"include_usage": True}}
    with running(crowd) as server:
        found: dict[str, str] = {}

        def listen(user: str) -> None:
            found[user] = httpx.post(f"{server.url}/v1/completions", json={**ask, "user": user}).text

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


def test_two_signals_end_it_at_once(crowd: Host) -> None:
    """The first lets a stream go on and refuses what is new; the second ends all."""

    async def live() -> tuple[int, int, str, bytes]:
        server, listening = Server(served(crowd), drain=60), bound("127.0.0.1", 0)
        port = listening.getsockname()[1]
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire({**LONG, "stream": True}))
        await reader.readuntil(b"data: ")
        os.kill(os.getpid(), signal.SIGTERM)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            refused = await http.post("/v1/completions", json=LONG)
            health = await http.get("/health")
        os.kill(os.getpid(), signal.SIGTERM)
        rest = await reader.read()
        writer.close()
        await asyncio.wait_for(serving, 10)
        assert int(refused.headers["retry-after"]) >= 1
        return refused.status_code, health.status_code, health.json()["status"], rest

    *told, rest = asyncio.run(live())
    assert told == [503, 503, "draining"]
    assert b"[DONE]" not in rest
    assert b'"message":"the server is leaving' in rest
    until(lambda: empty(crowd))


def test_what_is_late_to_finish_is_told_so(crowd: Host) -> None:
    """When the time to leave is over, a request whose answer has not begun gets one all the same."""
    server = Running(crowd, drain=0.2)
    found: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: found.append(httpx.post(f"{server.url}/v1/completions", json=LONG)))
    asking.start()
    until(lambda: crowd.served["long"].numbers()["running"] == 1)
    server.server.handle_exit(signal.SIGTERM, None)
    asking.join(20)
    server.thread.join(20)
    assert (found[0].status_code, found[0].json()["error"]["type"]) == (503, "unavailable_error")
    assert not server.thread.is_alive()
    until(lambda: empty(crowd))
