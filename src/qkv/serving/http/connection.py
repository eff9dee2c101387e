"""uvicorn's HTTP/1.1 protocol with time limits for clients that hold a connection.

waiting for the headers of a request     HEADERS_SECONDS
reading its body                         middleware.BODY_SECONDS
computing the response                   the deadline of the request
the client reads the response            sse.STALLED
idle, until the next request             uvicorn's keep-alive timeout
closing, while the client still sends    LINGER_SECONDS
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from starlette.datastructures import MutableHeaders
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.serving.http import sse
from qkv.serving.http.errors import error_response
from qkv.serving.http.middleware import SECURITY

HEADERS_SECONDS = 15.0
"""Time limit for the request line and headers."""
LINGER_SECONDS = 5.0
"""Time a client has to read a response that was sent before its request was complete."""
LINGER_BYTES = 16 << 20
"""Bytes a client may send in that time."""


class Connection(H11Protocol):
    """One connection, with timers for headers, unread responses and lingering."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.headers_timer: asyncio.TimerHandle | None = None
        self.unread_timer: asyncio.TimerHandle | None = None
        self.linger_timer: asyncio.TimerHandle | None = None
        self.discarded = 0
        super().connection_made(cast(asyncio.Transport, Lingering(transport, self)))
        self.wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self.discarded += len(data)
            if self.discarded > LINGER_BYTES:
                self.transport.abort()

            return

        super().data_received(data)
        self.wait_for_headers()

    def wait_for_headers(self) -> None:
        """Start or stop the timer of the headers; an idle connection is closed by uvicorn."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self.headers_timer is None:
            self.headers_timer = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)
        elif not waits and self.headers_timer is not None:
            self.headers_timer.cancel()
            self.headers_timer = None

    def on_response_complete(self) -> None:
        if self.unread_timer is None:
            self.wait_for_reader(None)

        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.transport.close()  # no request can follow a body that was not read

        super().on_response_complete()

    def wait_for_reader(self, before: int | None) -> None:
        """Require that the client reads half of the remaining response within each interval."""
        self.unread_timer = None
        left = self.transport.get_write_buffer_size()
        if before is not None and left > before // 2:
            self.transport.abort()
        elif left:
            self.unread_timer = self.loop.call_later(sse.STALLED, self.wait_for_reader, left)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with an error in JSON, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has started
            self.transport.abort()
            return

        if self.cycle is not None:
            self.cycle.disconnected = True  # the route must not send anything after this

        refusal = error_response(
            400, "request: not valid HTTP/1.1; check its request line, headers and body length"
        )
        headers = MutableHeaders(raw=list(refusal.raw_headers))
        headers.update({**SECURITY, "Connection": "close"})

        for event in (
            h11.Response(status_code=400, headers=headers.raw, reason=b"Bad Request"),
            h11.Data(data=bytes(refusal.body)),
            h11.EndOfMessage(),
            h11.ConnectionClosed(),
        ):
            self.transport.write(self.conn.send(event) or b"")

        self.transport.close()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close the connection without losing the response.

        Closing a socket with unread input resets the connection, and the client would see the
        reset instead of the response. So half-close it, discard what still arrives, and close when
        the client does, or when its time is over.
        """
        unfinished = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if not unfinished or self.linger_timer is not None or not transport.can_write_eof():
            transport.close()
        elif not transport.is_closing():
            self.linger_timer = self.loop.call_later(LINGER_SECONDS, transport.abort)
            transport.write_eof()
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.headers_timer, self.unread_timer, self.linger_timer):
            if timer is not None:
                timer.cancel()

        super().connection_lost(exc)


class Lingering:
    """A transport whose `close` is `Connection.linger`; a second `close` closes at once."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self.inner = transport
        self.connection = connection
        self.write = transport.write  # called for every event of a stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def is_closing(self) -> bool:
        return self.connection.linger_timer is not None or self.inner.is_closing()

    def close(self) -> None:
        self.connection.linger(self.inner)
