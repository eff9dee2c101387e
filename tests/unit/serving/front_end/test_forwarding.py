"""Forwarded responses of clients that read slowly: bounded memory, and nobody else waits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from qkv.serving.front_end.channel import Channel, Kind
from qkv.serving.front_end.forwarding import (
    PART_BYTES,
    WINDOW_BYTES,
    ForwardedRequests,
    ForwardedResponse,
    Forwarder,
)
from qkv.serving.front_end.front_end_link import FrontEndLink
from qkv.serving.front_end.remote_host import RemoteHost
from qkv.serving.http import sse
from qkv.serving.http.sse import ClientDisconnected
from qkv.serving.model_host import ModelHost
from support.serving_fixtures import Models
from support.small_server import Separated, hosting, separated
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("without_shape_checks")
LARGE = bytes(range(256)) * (1 << 16)
"""16 MiB, more than the system buffers for a connection."""
SIZES = [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES // 2, WINDOW_BYTES, 9 * PART_BYTES + 5]


# Both ends in one event loop


class Ends:
    """A front end's forwarder and the engine's side, joined by a channel."""

    def __init__(self, app: Any) -> None:
        mine, theirs = socket.socketpair()
        self.channel = Channel(mine, self.receive, nothing, nothing)
        self.requests = ForwardedRequests(app, self.channel)
        host = RemoteHost(4)
        host.channel = Channel(theirs, self.receive_part, nothing, nothing)
        self.forwarder = Forwarder(host, nothing)
        self.received = 0
        """Bytes of bodies that have reached the front end."""
        self.channel.start()
        host.channel.start()

    def receive(self, kind: Kind, payload: bytes) -> None:
        link: Any = SimpleNamespace(forwarded=self.requests, abort=self.requests.abort)
        FrontEndLink.receive(link, kind, payload)

    def receive_part(self, kind: Kind, payload: bytes) -> None:
        self.received += len(payload)
        self.forwarder.receive_part(payload)

    def close(self) -> None:
        self.channel.close()
        self.forwarder.host.channel.close()


def nothing(*arguments: object) -> None:
    """A callback that is not expected to matter."""


async def connected() -> Message:
    """A `receive` of a client that stays."""
    await asyncio.Event().wait()
    raise AssertionError


class Client:
    """A `send` that takes bytes while `reads` is set."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.reads = asyncio.Event()
        self.reads.set()

    async def __call__(self, message: Message) -> None:
        await self.reads.wait()
        self.body += message.get("body", b"")


async def large_app(scope: Scope, receive: Receive, send: Send) -> None:
    size = int(scope["path"])
    await Response(LARGE[:size])(scope, receive, send)


async def view_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a memoryview, as ASGI allows it."""

    async def parts() -> AsyncIterator[memoryview]:
        yield memoryview(LARGE)[: int(scope["path"])]

    await StreamingResponse(parts())(scope, receive, send)


def scope_of(path: str) -> Scope:
    return {"type": "http", "method": "GET", "path": path, "headers": [], "body": b""}


@pytest.mark.parametrize("app", [large_app, view_app])
@pytest.mark.parametrize("size", SIZES)
def test_a_body_arrives_whole(size: int, app: Any) -> None:
    async def exchange() -> None:
        ends = Ends(app)
        client = Client()
        await ends.forwarder(scope_of(str(size)), connected, client)
        assert client.body == LARGE[:size]
        ends.close()

    asyncio.run(exchange())


def test_a_slow_client_has_one_window_and_delays_no_other() -> None:
    async def exchange() -> None:
        ends = Ends(large_app)
        slow, quick = Client(), Client()
        slow.reads.clear()
        waiting = asyncio.create_task(ends.forwarder(scope_of(str(len(LARGE))), connected, slow))
        while not ends.requests.responses:
            await asyncio.sleep(0)

        response = ends.requests.responses[1]
        while response.unread < WINDOW_BYTES:
            await asyncio.sleep(0)

        size = 2 * WINDOW_BYTES
        await ends.forwarder(scope_of(str(size)), connected, quick)
        assert quick.body == LARGE[:size]
        assert response.unread == WINDOW_BYTES
        assert len(ends.channel.unsent) == 0
        assert ends.received < 2 * WINDOW_BYTES + size

        slow.reads.set()
        await waiting
        assert slow.body == LARGE
        ends.close()

    asyncio.run(exchange())


def test_a_client_that_vanishes_ends_its_response() -> None:
    async def exchange() -> None:
        ends = Ends(large_app)
        slow = Client()
        slow.reads.clear()
        vanished = asyncio.Event()

        async def receive() -> Message:
            await vanished.wait()
            return {"type": "http.disconnect"}

        waiting = asyncio.create_task(ends.forwarder(scope_of(str(len(LARGE))), receive, slow))
        while not (ends.requests.responses and ends.requests.responses[1].unread == WINDOW_BYTES):
            await asyncio.sleep(0)

        vanished.set()
        with pytest.raises(ClientDisconnected):
            await waiting

        while ends.requests.running:
            await asyncio.sleep(0)

        assert (ends.requests.responses, ends.requests.gone, ends.forwarder.parts) == ({}, {}, {})
        ends.close()

    asyncio.run(exchange())


def test_a_client_must_take_half_of_the_rest_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALLED", 0.0)

    async def exchange() -> None:
        sent: list[Any] = []
        channel: Any = SimpleNamespace(send_object=lambda kind, part: sent.append(part))
        response = ForwardedResponse(channel, 1, {})
        with pytest.raises(ClientDisconnected):
            await response({"type": "http.response.body", "body": LARGE, "more_body": False})

        assert sum(len(part.message["body"]) for part in sent) <= WINDOW_BYTES
        assert not response.complete

    asyncio.run(exchange())


# Whole servers


def large_routes() -> APIRouter:
    router = APIRouter()

    @router.get("/large")
    async def large() -> Response:
        return Response(LARGE)

    @router.get("/events")
    async def events() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, len(LARGE), 4096):
                yield LARGE[begin : begin + 4096]

        return StreamingResponse(parts())

    return router


@pytest.fixture(scope="module")
def host(models: Models) -> Iterator[ModelHost]:
    host = hosting({"gpt": models["gpt"]})
    yield host
    host.close()


def stalled(server: Separated, path: str) -> socket.socket:
    """A client that has read a few bytes, and whose response waits for it."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert line.recv(12) == b"HTTP/1.1 200"
    until(lambda: [response for response in responses(server) if waits(response)])
    return line


def waits(response: ForwardedResponse) -> bool:
    return response.unread > WINDOW_BYTES - PART_BYTES


def responses(server: Separated) -> list[ForwardedResponse]:
    # Copies: the event loop changes them meanwhile.
    found = [list(link.forwarded.responses.values()) for link in server.service.links]
    return [each for some in found for each in some]


def rest_of(line: socket.socket) -> bytes:
    got = bytearray()
    try:
        while more := line.recv(1 << 20):
            got += more
    except ConnectionResetError:
        pass
    return bytes(got)


@pytest.mark.parametrize("path", ["/large", "/events"])
def test_two_processes_hold_one_window_of_a_response(host: ModelHost, path: str) -> None:
    with separated(host, routers=[large_routes()]) as server:
        line = stalled(server, path)
        assert httpx.get(server.url + "/v1/models", timeout=PATIENCE).status_code == 200
        until(lambda: len(responses(server)) == 1)  # the other one has ended here, too
        (response,) = responses(server)
        assert response.unread <= WINDOW_BYTES
        answer = rest_of(line)
        assert len(answer) > len(LARGE)
        until(lambda: not responses(server))


def test_a_stalled_client_that_disconnects_leaves_nothing(host: ModelHost) -> None:
    with separated(host, routers=[large_routes()]) as server:
        stalled(server, "/large").close()
        until(lambda: not responses(server))
        assert httpx.get(server.url + "/v1/models", timeout=PATIENCE).status_code == 200


def test_a_front_end_that_is_killed_while_a_client_stalls(host: ModelHost) -> None:
    with separated(host, routers=[large_routes()]) as server:
        line = stalled(server, "/large")
        os.kill(server.children[0].pid, signal.SIGKILL)
        assert server.ended() == -signal.SIGKILL
        assert not responses(server)
        line.close()


def test_a_server_stops_while_a_client_stalls(host: ModelHost) -> None:
    with separated(host, routers=[large_routes()]) as server:
        line = stalled(server, "/large")
        server.service.stop()
        assert server.ended() == 0
        assert not responses(server)
        line.close()
