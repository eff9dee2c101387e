"""The engine's process with front ends in processes of their own.

If any process ends, the others notice that its channel is closed, and end as well.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import threading
from typing import Any

from qkv.serving.front_end.channel import Kind
from qkv.serving.front_end.exit_status import EXPECTED
from qkv.serving.front_end.front_end_link import STOP_SECONDS, FrontEndLink
from qkv.serving.front_end.remote_host import ModelOutline
from qkv.serving.http.middleware import RequestMiddleware
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost


class EngineService:
    """Starts the front ends of a server, and stops them."""

    def __init__(self, host: ModelHost, middleware: RequestMiddleware, count: int = 1) -> None:
        """Prepare `count` front ends over the models of a host.

        Requests that they do not answer themselves go to the application of the middleware.
        """
        self.host = host
        self.middleware = middleware
        self.links = [FrontEndLink(host, middleware) for _ in range(count)]
        self.stopping = False
        middleware.metrics.running.set_function(
            lambda: sum(link.running_requests for link in self.links)
        )

    def run(self, listening: socket.socket, settings: dict[str, Any]) -> int:
        """Serve until the front ends have ended; returns the exit status to report."""
        for link in self.links:
            link.channel.send_object(Kind.SETTINGS, settings)

        self.host.on_change = self.announce
        for entry in list(self.host.entries.values()):
            self.announce(entry)

        try:
            for link in self.links:
                link.start(listening)
        except BaseException:
            self.kill()  # those that have started would accept connections that nobody answers
            raise

        return asyncio.run(self.serve())

    async def serve(self) -> int:
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.drain)

        statuses = await asyncio.gather(*map(self.serve_link, self.links))
        unexpected = [status for status in statuses if status not in EXPECTED]
        if unexpected:
            return unexpected[0]

        return max(statuses)

    async def serve_link(self, link: FrontEndLink) -> int:
        """Serve one front end; if it ends by itself, the others are stopped."""
        status = await link.serve()
        if not self.stopping:
            self.stop()

        return status

    def drain(self) -> None:
        """Pass a signal on: front ends finish running requests, or stop at the second one."""
        self.middleware.draining = True
        self.stopping = True
        for link in self.links:
            if link.child.poll() is None:
                link.child.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the front ends without draining; any thread may call this."""
        self.stopping = True
        for link in self.links:
            link.channel.send_object(Kind.STOP, None)

        timer = threading.Timer(STOP_SECONDS, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """End the front ends that have started at once."""
        for link in self.links:
            if hasattr(link, "child") and link.child.poll() is None:
                link.child.kill()

    def announce(self, entry: ModelEntry) -> None:
        """A model is ready, or has failed; any thread may call this."""
        outline: ModelOutline | None = None
        model = entry.model
        if entry.state == "ready" and model is not None and model.predicts == "next":
            outline = ModelOutline(model.config, model.reads_on)

        try:
            parts = pickle.dumps((outline, entry.tokenizer), pickle.HIGHEST_PROTOCOL)
        except Exception:  # a user's own class: this process answers its requests
            parts = pickle.dumps((None, None))

        payload = pickle.dumps((entry.name, parts))
        for link in self.links:
            link.channel.send(Kind.MODEL, payload)
