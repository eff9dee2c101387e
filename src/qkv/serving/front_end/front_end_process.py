"""The front end's process: an HTTP server whose engine is at the other end of a channel.

    python -m qkv.serving.front_end.front_end_process CHANNEL LISTENING

Both arguments are numbers of open sockets. `qkv serve` starts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from qkv.serving.front_end.channel import Channel, Kind, read_frame
from qkv.serving.front_end.exit_status import DRAINED_TOO_LONG, STOPPED_AT_ONCE
from qkv.serving.front_end.forwarding import Forwarder
from qkv.serving.front_end.remote_attempts import RemoteAttempts
from qkv.serving.front_end.remote_host import RemoteHost
from qkv.serving.http.direct_routes import DirectRoutes
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.server import Server
from qkv.serving.routes.generation_routes import DIRECT

SEND_SECONDS = 0.5
"""Until a response is counted in the metrics of another front end, at the latest."""


@dataclass
class RunningGauge:
    """The number of running requests, read when the metrics are sent."""

    read: Callable[[], float] = lambda: 0.0

    def set_function(self, read: Callable[[], float]) -> None:
        self.read = read


@dataclass
class RemoteMetrics:
    """Responses to count, which the engine's process adds to its metrics."""

    host: RemoteHost
    running: RunningGauge = field(default_factory=RunningGauge)
    counted: list[tuple[str, int, float]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one response; many are sent at once, within a second."""
        self.counted.append((route, status, seconds))
        if len(self.counted) >= 256:
            self.send()
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(SEND_SECONDS, self.send)

    def send(self) -> None:
        """Send the counts; also called before a forwarded request, such as that for the metrics."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

        counted = self.counted
        self.counted = []
        self.host.channel.send_soon(Kind.COUNTS, (self.running.read(), counted))


class FrontEndServer(Server):
    """The HTTP server of the front end's process."""

    def __init__(self, end: socket.socket, settings: dict[str, Any]) -> None:
        host = RemoteHost(settings["queue"])
        host.channel = Channel(end, self.receive_frame, host.put_chunks, self.lose)
        metrics: Any = RemoteMetrics(host)
        rules: AccessRules = settings["rules"]
        self.host = host
        self.attempts = RemoteAttempts(host)
        self.forwarder = Forwarder(host, metrics.send)
        routes = DirectRoutes(self.forwarder, DIRECT)
        app = RequestMiddleware(routes, rules, metrics, self.attempts.check)
        self.forwarder.state.host = host
        self.forwarder.state.rules = rules
        self.forwarder.state.middleware = app
        super().__init__(app, settings["drain"], self.leave)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.host.channel.start()
        await super().startup(sockets)

    def receive_frame(self, kind: Kind, payload: bytes) -> None:
        """Handle a frame of the engine's process."""
        if kind is Kind.TOKENS:
            self.host.add_tokens(payload)
        elif kind is Kind.UPDATES:
            self.host.add_updates(pickle.loads(payload))
        elif kind is Kind.RESPONSE:
            self.forwarder.receive_part(payload)
        elif kind is Kind.MODEL:
            self.host.add_model(payload)
        elif kind is Kind.KEY_CHECKED:
            self.attempts.receive(pickle.loads(payload))
        elif kind is Kind.STOP:
            self.stop()

    def lose(self) -> None:
        """The engine's process is gone: open requests get an error, and the server stops."""
        self.host.lose()
        self.forwarder.lose()
        self.attempts.lose()
        self.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only the engine's process drains this one: a terminal sends Ctrl-C to both."""
        if sig != signal.SIGINT:
            super().handle_exit(sig, frame)

    def leave(self) -> None:
        """End at once, although requests still run."""
        logging.shutdown()
        os._exit(STOPPED_AT_ONCE if self.force_exit else DRAINED_TOO_LONG)


def main() -> None:
    """Serve until the engine's process says otherwise or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    listening = socket.socket(fileno=int(sys.argv[2]))
    try:
        _, payload = read_frame(end)
    except EOFError:
        return

    settings = pickle.loads(payload)
    if settings["logs"]:
        logging.basicConfig(**settings["logs"])
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    server = FrontEndServer(end, settings)
    server.run([listening])


if __name__ == "__main__":
    main()
