"""Forwarded HTTP requests: the front end has read them, and the engine's process answers them."""

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
from qkv.serving.http.errors import exception_response
from qkv.serving.http.sse import while_connected

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
        started = False
        more = True
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
                await send(part.message)
        finally:
            del self.parts[number]
            if more:
                self.host.channel.send_soon(Kind.ABORT, number)

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

    def start(self, number: int, scope: Scope) -> None:
        """Answer a request in a task of its own."""
        self.gone[number] = asyncio.Event()
        self.running[number] = asyncio.create_task(self.answer(number, scope))

    def abort(self, number: int) -> None:
        """The client has disconnected."""
        if number in self.gone:
            self.gone[number].set()

    async def answer(self, number: int, scope: Scope) -> None:
        gone = self.gone[number]
        response = ForwardedResponse(self.channel, number, scope)
        receive = replayed(scope["body"], gone)

        async def run() -> None:
            await self.app(scope, receive, response)

        try:
            await while_connected(replayed(None, gone), run())
        except BaseException as error:
            if gone.is_set():
                return
            if "logged" not in scope:
                log_unexpected(error)
            if not response.complete:
                self.channel.send_object(Kind.RESPONSE, ResponsePart(number, CUT, None))
        finally:
            del self.gone[number]
            del self.running[number]


class ForwardedResponse:
    """The `send` of a forwarded request."""

    def __init__(self, channel: Channel, number: int, scope: Scope) -> None:
        self.channel = channel
        self.number = number
        self.scope = scope
        self.complete = False

    async def __call__(self, message: Message) -> None:
        self.complete = is_last(message)
        route = None
        if message["type"] == "http.response.start":
            route = getattr(self.scope.get("route"), "path", None)

        self.channel.send_object(Kind.RESPONSE, ResponsePart(self.number, message, route))


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
