"""uvicorn server with graceful shutdown.

After the first signal no new requests are accepted, and running ones are finished within some
seconds (draining). The second signal stops the server at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from qkv.serving.http.connection import Connection
from qkv.serving.http.middleware import RequestMiddleware

log = logging.getLogger("qkv.serving")
BACKLOG = 2048
LAST_SECONDS = 10.0
"""Seconds after draining in which the server must have stopped."""


class Server(uvicorn.Server):
    """Runs the application, and drains it when it is asked to stop."""

    def __init__(
        self,
        app: RequestMiddleware,
        drain: float,
        at_once: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        """Create a server.

        Args:
            app: The application.
            drain: Seconds that running requests have after the first signal.
            at_once: Ends the process, because returning normally would wait for threads that
                still work. Called after the second signal, and if draining takes too long.
            options: Further options of `uvicorn.Config`, such as http="h11".
        """
        # No access log: the middleware writes one, without queries.
        config = uvicorn.Config(
            app,
            access_log=False,
            server_header=False,
            log_config=None,
            timeout_graceful_shutdown=1,
            backlog=BACKLOG,
            ws="none",
            lifespan="off",
            timeout_keep_alive=30,
            **options,
        )
        super().__init__(config)
        self.app = app
        self.drain = drain
        self.at_once = at_once
        self.timers: list[threading.Timer] = []

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the server is stopped, and asyncio has waited for its executor's threads."""
        try:
            super().run(sockets)
        finally:
            for timer in self.timers:
                timer.cancel()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        if self.force_exit and self.at_once is not None:
            self.at_once()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        protocol = self.config.http_protocol_class
        self.config.http_protocol_class = partial(Connection, protocol)  # type: ignore[assignment]
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.draining = True  # cancelled requests get a 503
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Stop now, without draining; any thread may call this."""
        self.end_within(LAST_SECONDS)
        self.app.draining = True
        self.should_exit = True

    def end_within(self, seconds: float) -> None:
        """End the process after some seconds, whatever still runs."""
        if self.at_once is not None:
            timer = threading.Timer(seconds, self.at_once)
            timer.daemon = True
            timer.start()
            self.timers.append(timer)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after the first signal, and stop after the second.

        While the server drains its port stays open, so that new clients get a 503. uvicorn would
        close it, and would raise the signal again at the end.
        """
        if self.app.draining:
            self.should_exit = True
            self.force_exit = True
            for task in self.app.running:
                task.cancel()
        else:
            self.end_within(self.drain + LAST_SECONDS)

        self.app.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self.app.draining and not self.should_exit:
            await self.finish()

        return await super().on_tick(counter)

    async def finish(self) -> None:
        """Wait for running requests, and cancel those that take too long."""
        if self.app.running:
            count = len(self.app.running)
            requests = "request" if count == 1 else "requests"
            log.info("draining %d running %s; signal again to stop at once", count, requests)
            await asyncio.wait(self.app.running, timeout=self.drain)

        for task in self.app.running:
            task.cancel()

        self.should_exit = True


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket; raises ValueError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, socket.gaierror):
            raise ValueError(f"host: {host} is not an address of this machine") from error

        raise ValueError(
            f"port: {host}:{port} cannot be used ({error.strerror}); choose another (--port), or "
            "stop the process using it"
        ) from error

    return listening
