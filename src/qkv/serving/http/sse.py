"""Server-sent events (SSE), and work that is cancelled as soon as its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from qkv.serving.http.errors import exception_response, to_json

T = TypeVar("T")
STALLED = 60.0
"""Seconds that a client may leave a chunk unread before it counts as disconnected."""
DONE = b"data: [DONE]\n\n"


class ClientDisconnected(BaseException):
    """The client disconnected: no response can be sent.

    Like a cancellation, it is not an Exception: no handler of errors may catch it.
    """


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; if the client disconnects first, the work is cancelled."""
    working = asyncio.create_task(work)
    disconnecting = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({working, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected

        return working.result()
    finally:
        for task in (working, disconnecting):
            task.cancel()

        await asyncio.gather(working, disconnecting, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event(value: Any) -> bytes:
    """A value as one event, in JSON."""
    return b"data: " + to_json(value) + b"\n\n"


class EventStream(Response):
    """A stream of events.

    An error before the first event is a normal error response; later it is the last event.
    """

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"  # proxies pass each event on at once
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self.stream(scope, receive, send))

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, and close the source whatever happens."""
        connection = scope.get("state", {}).get("connection")
        started = False
        try:
            async for content in self.events:
                if not started:
                    await send(
                        {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                    )
                    started = True

                message = {"type": "http.response.body", "body": content, "more_body": True}
                await send_in_time(send, message, connection)
        except (ClientDisconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            failed = exception_response(error)
            if not started:
                await failed(scope, receive, send)
                return

            content = b"data: " + bytes(failed.body) + b"\n\n"
            message = {"type": "http.response.body", "body": content, "more_body": True}
            await send_in_time(send, message)
        finally:
            await self.events.aclose()  # type: ignore[attr-defined]

        message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send_in_time(send, message)


async def send_in_time(send: Send, message: Message, connection: Any = None) -> None:
    """Send a part of the body; a client that does not take it in time counts as disconnected."""
    if connection is not None and connection.takes_more:
        await send(message)  # at once, without a timer
        return

    try:
        async with asyncio.timeout(STALLED):
            await send(message)
    except TimeoutError:
        raise ClientDisconnected from None
