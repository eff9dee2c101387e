"""uvicorn around the door: it leaves in order. The first signal: nothing new is taken, what runs is
finished, within some seconds. The second: it leaves at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from qkv.serving.http.connection import Connection
from qkv.serving.http.middleware import RequestMiddleware

log = logging.getLogger("qkv.serving")
TICK = 0.05
BACKLOG = 2048
LAST_SECONDS = 10.0
"""After draining, in which the server must have ended."""


class Server(uvicorn.Server):
    def __init__(
        self, door: RequestMiddleware, drain: float, at_once: Callable[[], None] | None = None
    ) -> None:
        """`at_once` ends the process. It is called after the second signal, when all lines are cut,
        and some seconds after draining should have ended: who returns from here normally waits for
        threads that still work."""
        # The access log is the door's: uvicorn's would have queries in it.
        config = uvicorn.Config(
            door, access_log=False, server_header=False, log_config=None, timeout_graceful_shutdown=1, backlog=BACKLOG,
            http=Connection, ws="none", lifespan="off", timeout_keep_alive=30,
        )  # fmt: skip
        super().__init__(config)
        self.door, self.drain, self.at_once = door, drain, at_once
        self.timers: list[threading.Timer] = []

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it has left. asyncio's own end is inside: it waits for the threads of its executor."""
        try:
            super().run(sockets)
        finally:
            for timer in self.timers:
                timer.cancel()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        if self.force_exit and self.at_once is not None:
            self.at_once()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.door.draining = True  # whoever is cancelled now is told why
        await super().shutdown(sockets)

    def stop(self) -> None:
        """End now, without draining: nothing can be answered any more. Any thread may call this."""
        self.end_within(LAST_SECONDS)
        self.door.draining = self.should_exit = True

    def end_within(self, seconds: float) -> None:
        """End the process then, whatever still runs in it."""
        if self.at_once is not None:
            timer = threading.Timer(seconds, self.at_once)
            timer.daemon = True
            timer.start()
            self.timers.append(timer)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """While it drains the port stays open, so that those who come are told so. uvicorn would
        close it, and would raise the signal again at the end: a server that was asked to leave and
        did has not failed."""
        if self.door.draining:
            self.should_exit = self.force_exit = True
            for task in self.door.running:
                task.cancel()
        else:
            self.end_within(self.drain + LAST_SECONDS)

        self.door.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self.door.draining and not self.should_exit:
            await self.finish()

        return await super().on_tick(counter)

    async def finish(self) -> None:
        if self.door.running:
            count = len(self.door.running)
            log.info(
                "leaving when %d request%s ended; once more, and it is at once",
                count,
                " has" if count == 1 else "s have",
            )

        left = self.drain
        while self.door.running and left > 0 and not self.should_exit:
            await asyncio.sleep(TICK)
            left -= TICK

        for task in self.door.running:
            task.cancel()

        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or a sentence why none can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, socket.gaierror):
            raise ValueError(f"host: {host} is no address of this machine") from error

        raise ValueError(
            f"port: {host}:{port} cannot be had ({error.strerror}); choose another, or end who has it"
        ) from error

    return listening
