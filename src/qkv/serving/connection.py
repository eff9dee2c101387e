"""One connection, as uvicorn keeps it, for clients that keep a server waiting: those who connect and do not say what
they want, and those who ask and do not take the answer. Each would hold a descriptor, or megabytes, for good."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.serving import listening

HEADERS_SECONDS = 15.0
"""In which a request must have come, up to its body; the door waits for that."""


class Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.headers_late: asyncio.TimerHandle | None = None
        self.unread_late: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self.wait_for_headers()

    def data_received(self, data: bytes) -> None:
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
        super().on_response_complete()

    def wait_for_reader(self, before: int | None) -> None:
        """Of an answer that is made, half of what is left must be taken in each while."""
        left, self.unread_late = self.transport.get_write_buffer_size(), None
        if before is not None and left > before // 2:
            self.transport.abort()
        elif left:
            self.unread_late = self.loop.call_later(listening.STALLED, self.wait_for_reader, left)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.headers_late, self.unread_late):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
