"""Forwarded HTTP requests: the front end has read them, and the engine's process answers them.

Back-pressure: a response has at most `WINDOW_BYTES` on the way to its client. The front end says
what the client has taken, and the engine's process then sends more; other responses do not wait.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.error_log import log_unexpected
from qkv.serving.front_end.channel import Channel, Kind
from qkv.serving.front_end.remote_host import ENGINE_GONE, RemoteHost
from qkv.serving.http import sse
from qkv.serving.http.errors import exception_response
from qkv.serving.http.sse import ClientDisconnected, send_in_time, while_connected

PART_BYTES = 64 << 10
"""Bytes of a body that are sent at once."""
WINDOW_BYTES = 4 * PART_BYTES
"""Bytes of one response between the engine's process and its client."""
FIELDS = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
    "signed_in",
    "body",
)
"""What the routes read of a scope."""


class ResponsePart(NamedTuple):
    """A message of a response, with the path of the route that sends it."""

    number: int
    message: Message
    route: str | None


class Forwarder:
    """The front end's application for all that it does not answer itself."""

    def __init__(self, host: RemoteHost, before: Callable[[], None]) -> None:
        """Forward requests; `before` is called before each one."""
        self.host = host
        self.before = before
        self.parts: dict[int, asyncio.Queue[ResponsePart]] = {}
        self.state = State()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self.forward(scope, receive, send))

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request to the engine's process, and pass its response on."""
        number = next(self.host.numbers)
        parts: asyncio.Queue[ResponsePart] = asyncio.Queue()
        self.parts[number] = parts
        self.before()
        fields = {name: scope[name] for name in FIELDS if name in scope}
        self.host.channel.send_soon(Kind.FORWARD, (number, fields))
        connection = scope.get("state", {}).get("connection")
        started = False
        more = True
        taken = 0
        try:
            while more:
                part = await parts.get()
                if part.message is GONE and not started:
                    refusal = exception_response(RequestRefused(503, ENGINE_GONE))
                    await refusal(scope, receive, send)
                    return

                if part.message["type"] == CUT["type"]:
                    scope["logged"] = True
                    raise ConnectionError("the response cannot be completed")

                if part.route is not None:
                    scope["route"] = SimpleNamespace(path=part.route)

                started = True
                more = not is_last(part.message)
                await send_in_time(send, part.message, connection)
                taken = self.acknowledge(number, taken + len(part.message.get("body", b"")))
        finally:
            del self.parts[number]
            if more:
                self.host.channel.send_soon(Kind.ABORT, number)

    def acknowledge(self, number: int, taken: int) -> int:
        """Report how much a client has taken, unless it is little; returns what is not reported."""
        if taken < PART_BYTES:
            return taken

        self.host.channel.send_soon(Kind.TAKEN, (number, taken))
        return 0

    def receive_part(self, payload: bytes) -> None:
        """A part of a response has arrived."""
        part: ResponsePart = pickle.loads(payload)
        if part.number in self.parts:
            self.parts[part.number].put_nowait(part)

    def lose(self) -> None:
        """The engine's process is gone."""
        for number, parts in self.parts.items():
            parts.put_nowait(ResponsePart(number, GONE, None))


class ForwardedRequests:
    """The engine's side: runs forwarded requests in the application with all routes."""

    def __init__(self, app: ASGIApp, channel: Channel) -> None:
        self.app = app
        self.channel = channel
        self.running: dict[int, asyncio.Task[None]] = {}
        self.gone: dict[int, asyncio.Event] = {}
        """Set when the client of a request has disconnected."""
        self.responses: dict[int, ForwardedResponse] = {}

    def start(self, number: int, scope: Scope) -> None:
        """Answer a request in a task of its own."""
        self.gone[number] = asyncio.Event()
        self.running[number] = asyncio.create_task(self.answer(number, scope))

    def abort(self, number: int) -> None:
        """The client has disconnected."""
        if number in self.gone:
            self.gone[number].set()

    def take(self, number: int, size: int) -> None:
        """The client has taken so many bytes of a response."""
        if number in self.responses:
            self.responses[number].take(size)

    async def answer(self, number: int, scope: Scope) -> None:
        gone = self.gone[number]
        response = ForwardedResponse(self.channel, number, scope)
        self.responses[number] = response
        receive = replayed(scope["body"], gone)

        async def run() -> None:
            await self.app(scope, receive, response)

        try:
            await while_connected(replayed(None, gone), run())
        except BaseException as error:
            if gone.is_set():
                return
            if "logged" not in scope and not isinstance(error, ClientDisconnected):
                log_unexpected(error)
            if not response.complete:
                self.channel.send_object(Kind.RESPONSE, ResponsePart(number, CUT, None))
        finally:
            del self.gone[number]
            del self.running[number]
            del self.responses[number]


class ForwardedResponse:
    """The `send` of a forwarded request, which waits while the client leaves much unread."""

    def __init__(self, channel: Channel, number: int, scope: Scope) -> None:
        self.channel = channel
        self.number = number
        self.scope = scope
        self.complete = False
        self.unread = 0
        """Bytes that the client has not taken yet, as far as is known here."""
        self.room = asyncio.Event()
        """Set when the client has taken some."""

    async def __call__(self, message: Message) -> None:
        last = is_last(message)
        if message["type"] == "http.response.body":
            await self.send_body(bytes(message.get("body", b"")), more=not last)
        else:
            self.send(message)

        self.complete = last

    async def send_body(self, body: bytes, *, more: bool) -> None:
        """Send a body in parts.

        The client must take half of what is left within each interval, as
        `Connection.wait_for_reader` requires it of a response that is in its own process.
        """
        begin = 0
        while len(body) - begin > PART_BYTES:
            half = begin + (len(body) - begin) // 2
            try:
                async with asyncio.timeout(sse.STALLED):
                    while begin < half:
                        await self.send_part(body[begin : begin + PART_BYTES], more=True)
                        begin += PART_BYTES
            except TimeoutError:
                raise ClientDisconnected from None

        await self.send_part(body[begin:], more=more)

    async def send_part(self, part: bytes, *, more: bool) -> None:
        """Send a part of a body as soon as the client has taken enough of those before."""
        while self.unread + len(part) > WINDOW_BYTES:
            self.room.clear()
            await self.room.wait()

        self.unread += len(part)
        self.send({"type": "http.response.body", "body": part, "more_body": more})

    def send(self, message: Message) -> None:
        route = None
        if message["type"] == "http.response.start":
            route = getattr(self.scope.get("route"), "path", None)

        self.channel.send_object(Kind.RESPONSE, ResponsePart(self.number, message, route))

    def take(self, size: int) -> None:
        """The client has taken so many bytes."""
        self.unread -= size
        self.room.set()


CUT: Any = {"type": "qkv.cut"}
"""In place of the rest of a response, which failed in the middle."""
GONE: Any = {"type": "qkv.cut"}
"""The same, because the engine's process has ended."""


def is_last(message: Message) -> bool:
    """Whether a message ends a response."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


def replayed(body: bytes | None, gone: asyncio.Event) -> Receive:
    """A `receive` that returns the body, if there is one, and then waits for the disconnect."""
    messages: list[Message] = []
    if body is not None:
        messages.append({"type": "http.request", "body": body, "more_body": False})

    async def receive() -> Message:
        if messages:
            return messages.pop()

        await gone.wait()
        return {"type": "http.disconnect"}

    return receive
