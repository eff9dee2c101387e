"""A server as a child process: started on a free port, and stopped while others are measured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.error import URLError
from urllib.request import urlopen


@dataclass
class Server:
    url: str
    child: subprocess.Popen[bytes]

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The process runs only inside this context."""
        os.killpg(self.child.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.child.pid, signal.SIGSTOP)


@contextmanager
def started(command: Sequence[str], *, threads: int, limit: float = 300) -> Iterator[Server]:
    """Run `command` with a --port, and wait at most `limit` seconds until it is ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the children too
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env=settings,
            start_new_session=True,
        )
        server = Server(f"http://127.0.0.1:{port}", child)
        try:
            for _ in range(int(limit / 0.2)):
                if is_ready(server.url):
                    break
                if child.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(
                        f"{' '.join(command)}: it exited\n{log.read().decode()[-2000:]}"
                    )
                time.sleep(0.2)
            else:
                raise TimeoutError(f"{' '.join(command)}: not ready after {limit:.0f} s")
            os.killpg(child.pid, signal.SIGSTOP)
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def is_ready(url: str) -> bool:
    with suppress(URLError, OSError), urlopen(f"{url}/health", timeout=5) as answer:
        return json.load(answer)["status"] in ("ready", "ok")
    return False
