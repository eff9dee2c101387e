"""The connection of a client: the response on it, and time limits for clients that hold it.

waiting for the headers of a request     HEADERS_SECONDS
reading its body                         middleware.BODY_SECONDS
computing the response                   the deadline of the request
the client reads the response            sse.STALLED
idle, until the next request             uvicorn's keep-alive timeout
closing, while the client still sends    LINGER_SECONDS

`Connection` stands between asyncio and uvicorn's protocol, whichever implementation that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from qkv.serving.http import sse
from qkv.serving.http.errors import error_response

HEADERS_SECONDS = 15.0
"""Time limit for the request line and headers."""
HEADERS_BYTES = 64 << 10
"""Bytes that may arrive before a request begins."""
LINGER_SECONDS = 5.0
"""Time a client has to read a response that was sent before its request was complete."""
LINGER_BYTES = 16 << 20
"""Bytes a client may send in that time."""
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
NOT_HTTP = "request: not valid HTTP/1.1; check its request line, headers and body length"


class Outgoing:
    """A `send` that adds the common headers, remembers the status and can cut the connection."""

    def __init__(self, send: Send, connection: Connection | None, *, unread: bool) -> None:
        """Wrap `send` for one response.

        Args:
            send: The server's `send`.
            connection: The client's connection; None without a network.
            unread: Whether the request has a body, which is not read yet.
        """
        self.send = send
        self.connection = connection
        self.unread = unread
        self.close = unread
        """Whether the connection takes no further request."""
        self.cross_origin = False
        """Whether pages of other origins may read the response."""
        self.status: int | None = None
        self.streams = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            self.streams = headers.get("content-type", "").startswith("text/event-stream")
            for name, value in SECURITY.items():
                headers.setdefault(name, value)

            if self.cross_origin:
                headers["Cross-Origin-Resource-Policy"] = "cross-origin"

            if self.close:
                headers["Connection"] = "close"

            message = {**message, "headers": headers.raw}
        elif not message.get("more_body", False):
            self.complete = True

        await self.send(message)

    def cut(self) -> None:
        """Abort the connection and discard what is buffered for it; ASGI cannot express this."""
        if self.connection is not None:
            self.connection.transport.abort()


class Connection(asyncio.Protocol):
    """Passes everything on to uvicorn's protocol, and bounds what that leaves open.

    The middleware finds it as scope["state"]["connection"], and calls `begin` and `end`.
    """

    transport: asyncio.Transport

    def __init__(
        self, protocol: Callable[..., Any], *, app_state: dict[str, Any], **options: Any
    ) -> None:
        """Create a connection; `options` are the other arguments of uvicorn's protocol."""
        self.inner = protocol(app_state={**app_state, "connection": self}, **options)
        self.loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        """The client is gone."""
        self.response: Outgoing | None = None
        """The response to the request that is being answered."""
        self.ahead = 0
        """Bytes that arrived outside of a request: headers of the next one."""
        self.parsing = False
        self.takes_more = True
        """Whether what is sent is written at once, because the client reads fast enough."""
        self.refused = False
        self.discarded = 0
        self.headers_timer: asyncio.TimerHandle | None = None
        self.unread_timer: asyncio.TimerHandle | None = None
        self.linger_timer: asyncio.TimerHandle | None = None

    # Requests

    def begin(self, response: Outgoing) -> None:
        """The headers of a request are complete."""
        self.response = response
        self.ahead = 0
        if self.headers_timer is not None:
            self.headers_timer.cancel()
            self.headers_timer = None

    def end(self, response: Outgoing) -> None:
        """The response is complete, or there will be none."""
        if self.response is response:  # otherwise the next request has begun
            self.response = None
            self.transport.resume_reading()
            self.check_headers()

        if self.unread_timer is None:
            self.wait_for_reader(None)

    # Events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(LingeringTransport(self))
        self.headers_timer = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self.linger_timer is not None:
            self.discarded += len(data)
            if self.discarded > LINGER_BYTES:
                self.transport.abort()

            return

        self.parsing = True
        self.inner.data_received(data)
        self.parsing = False
        if self.response is None or not self.response.unread:
            self.ahead += len(data)
            self.loop.call_soon(self.check_headers)  # after the first step of a request's task

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self.takes_more = False
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.takes_more = True
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.headers_timer, self.unread_timer, self.linger_timer):
            if timer is not None:
                timer.cancel()

        self.lost.set()
        self.inner.connection_lost(exc)

    # Limits

    def check_headers(self) -> None:
        """Limit size and time of incomplete headers; an idle connection is closed by uvicorn."""
        if not self.ahead or self.transport.is_closing():
            return

        if self.response is not None:
            if self.ahead > HEADERS_BYTES:
                self.transport.pause_reading()
        elif self.ahead > HEADERS_BYTES:
            self.refuse()
        elif self.headers_timer is None:
            self.headers_timer = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)

    def wait_for_reader(self, before: int | None) -> None:
        """Require that the client reads half of the remaining response within each interval."""
        self.unread_timer = None
        left = self.transport.get_write_buffer_size()
        if before is not None and left > before // 2:
            self.transport.abort()
        elif left:
            self.unread_timer = self.loop.call_later(sse.STALLED, self.wait_for_reader, left)

    def refuse(self) -> None:
        """Answer bytes that are not HTTP with an error in JSON, and close the connection."""
        if self.response is not None and self.response.status is not None:
            self.transport.abort()
            return

        refusal = error_response(400, NOT_HTTP, headers={**SECURITY, "Connection": "close"})
        lines = [b"HTTP/1.1 400 Bad Request"]
        lines += [name + b": " + value for name, value in refusal.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(refusal.body)]))
        self.refused = True
        self.close()

    def close(self) -> None:
        """Close the connection without losing the response; a second call closes at once.

        Closing a socket with unread input resets the connection, and the client would see the
        reset instead of the response. So half-close it, discard what still arrives, and close when
        the client does, or when its time is over.
        """
        unfinished = self.refused or (self.response is not None and self.response.unread)
        if not unfinished or self.linger_timer is not None or not self.transport.can_write_eof():
            self.transport.close()
        elif not self.transport.is_closing():
            self.linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
            self.transport.write_eof()
            self.transport.resume_reading()


class LingeringTransport:
    """The transport that uvicorn's protocol sees: it lingers, and its own refusals are in JSON."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection.transport, name)

    def is_closing(self) -> bool:
        connection = self.connection
        return connection.linger_timer is not None or connection.transport.is_closing()

    def write(self, data: bytes) -> None:
        if self.is_closing():
            return

        if self.connection.parsing:  # the parser does not understand the client
            self.connection.refuse()
        else:
            self.connection.transport.write(data)

    def close(self) -> None:
        if not self.connection.parsing:  # after a refusal, which closes
            self.connection.close()
