"""Someone waits for an answer, or has left: work goes on only as long as its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qkv.serving.http.errors import as_json, of_exception

T = TypeVar("T")
STALLED = 60.0
"""Seconds that a client may leave a piece unread before it counts as gone."""
DONE = b"data: [DONE]\n\n"


class ClientDisconnected(BaseException):
    """The client left; there is nobody to answer. As a cancellation, it is no error that anybody
    would handle.
    """


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. When the client leaves first, the work is cancelled there and then."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected

        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()

        await asyncio.gather(working, leaving, return_exceptions=True)


async def left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(request: Request, work: Coroutine[Any, Any, T]) -> T:
    return await attended(request.receive, work)


def event(value: Any) -> bytes:
    """As a server-sent event."""
    return b"data: " + as_json(value) + b"\n\n"


class EventStream(Response):
    """Events as they come. What fails before the first one is answered as any other failure is;
    afterwards the failure is an event itself, and the last."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"  # proxies pass each event on at once
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await attended(receive, self.told(scope, receive, send))

    async def told(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for content in self.events:
                if not started:
                    await send(
                        {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                    )
                    started = True

                await sent(send, content)
        except (ClientDisconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            failed = of_exception(error)
            if not started:
                await failed(scope, receive, send)
                return

            await sent(send, b"data: " + bytes(failed.body) + b"\n\n")
        finally:
            await self.events.aclose()  # type: ignore[attr-defined]

        await sent(send, b"", last=True)


async def sent(send: Send, content: bytes, last: bool = False) -> None:
    """A client that takes nothing for a while counts as gone."""
    try:
        async with asyncio.timeout(STALLED):
            await send({"type": "http.response.body", "body": content, "more_body": not last})
    except TimeoutError:
        raise ClientDisconnected from None
