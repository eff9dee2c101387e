"""uvicorn's HTTP/1.1 protocol, with a time limit for every state in which a client can hold a
connection:

waiting for the headers of a request     HEADERS_SECONDS
reading its body                         door.BODY_SECONDS
computing the response                   the deadline of the request
the client reads the response            listening.STALLED
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
from qkv.serving.http.errors import failure
from qkv.serving.http.middleware import SECURITY

HEADERS_SECONDS = 15.0
"""In which a request must have come, up to its body; the door waits for that."""
LINGER_SECONDS = 5.0
"""Time a client has to read a response that was sent before its request had come in full."""
LINGER_BYTES = 16 << 20
"""What it may send in that time."""


class Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.headers_late: asyncio.TimerHandle | None = None
        self.unread_late: asyncio.TimerHandle | None = None
        self.linger_late: asyncio.TimerHandle | None = None
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
        """Between two requests that say nothing it is uvicorn that closes the line."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self.headers_late is None:
            self.headers_late = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)
        elif not waits and self.headers_late is not None:
            self.headers_late.cancel()
            self.headers_late = None

    def on_response_complete(self) -> None:
        if self.unread_late is None:
            self.wait_for_reader(None)

        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.transport.close()  # no request can follow a body that nobody reads

        super().on_response_complete()

    def wait_for_reader(self, before: int | None) -> None:
        """Of an answer that is made, half of what is left must be taken in each while."""
        left, self.unread_late = self.transport.get_write_buffer_size(), None
        if before is not None and left > before // 2:
            self.transport.abort()
        elif left:
            self.unread_late = self.loop.call_later(sse.STALLED, self.wait_for_reader, left)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP in the shape of all errors, and close the connection."""
        if self.conn.our_state not in (
            h11.IDLE,
            h11.SEND_RESPONSE,
        ):  # the response has begun already
            self.transport.abort()
            return

        if self.cycle is not None:
            self.cycle.disconnected = (
                True  # whatever still works on the request sends nothing after this
            )

        refusal = failure(
            400,
            "request: it is not valid HTTP/1.1; check its request line, headers and body length",
        )
        headers = MutableHeaders(raw=list(refusal.raw_headers))
        headers.update({**SECURITY, "Connection": "close"})
        response = h11.Response(status_code=400, headers=headers.raw, reason=b"Bad Request")

        for event in (
            response,
            h11.Data(data=bytes(refusal.body)),
            h11.EndOfMessage(),
            h11.ConnectionClosed(),
        ):
            self.transport.write(self.conn.send(event) or b"")

        self.transport.close()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close after a response, without losing it: closing a socket that has unread input resets
        the connection, and the client would see the reset instead of the response. So end our side,
        discard what still comes, and close when the client does, or when its time is over."""
        unfinished = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if not unfinished or self.linger_late is not None or not transport.can_write_eof():
            transport.close()
        elif not transport.is_closing():
            self.linger_late = self.loop.call_later(LINGER_SECONDS, transport.abort)
            transport.write_eof()
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.headers_late, self.unread_late, self.linger_late):
            if timer is not None:
                timer.cancel()

        super().connection_lost(exc)


class Lingering:
    """A transport whose `close` is `Connection.linger`; a second `close` closes at once."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self.inner, self.connection = transport, connection
        self.write = transport.write  # called for every event of a stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def is_closing(self) -> bool:
        return self.connection.linger_late is not None or self.inner.is_closing()

    def close(self) -> None:
        self.connection.linger(self.inner)
