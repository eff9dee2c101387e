"""Options of a server, as `qkv serve` and `qkv.serving.serve` take them; imports no server."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from qkv.serving.addresses import check_origins

MAX_FRONT_ENDS = 64
DEFAULT_FRONT_ENDS = 3
"""On a GPU, if there are processors for them."""
BOUNDS = {
    "cache": (0.001, 4096),
    "rows": (1, 4096),
    "queue": (1, 100_000),
    "deadline": (0.1, 86_400),
    "drain": (0, 3600),
    "port": (0, 65535),
}


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Address and limits of a server."""

    host: str = "127.0.0.1"
    """Address to listen on; other addresses than this machine's loopback need a key."""
    port: int = 8000
    """Port to listen on; 0 takes any free one."""
    cache: float = 1.0
    """GiB of key-value cache per model, never exceeded; on a CPU memory grows up to it."""
    rows: int = 64
    """Sequences generated at once, per model."""
    queue: int = 256
    """Requests that may wait, per model; further requests get 429 with Retry-After."""
    deadline: float = 600.0
    """Seconds after which a request is cancelled."""
    drain: float = 30.0
    """Seconds to finish running requests after the first signal."""
    open_to_all: bool = False
    """Listen on an address other than loopback without any key."""
    cors: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An origin whose pages may call the API, such as https://example.org; may be repeated."""

    front_ends: int | None = None
    """Processes for HTTP and text; 0: the engine's own (the default, but on a GPU up to 3)."""

    def check(self) -> None:
        """Raise ValueError if a number is out of range, or an origin is none."""
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name}: expected {least:,} to {most:,}, not {value:,}")

        check_origins(self.cors)
        if self.front_ends is None:
            return
        if not 0 <= self.front_ends <= MAX_FRONT_ENDS:
            raise ValueError(f"front_ends: expected 0 to {MAX_FRONT_ENDS}, not {self.front_ends:,}")
        if self.front_ends and sys.platform == "win32":
            raise ValueError("front_ends: Windows passes no sockets on; expected 0")

    def processes(self, *, on_gpu: bool) -> int:
        """Number of front ends in processes of their own."""
        if self.front_ends is not None:
            return self.front_ends
        if not on_gpu or sys.platform == "win32":
            return 0

        return min(DEFAULT_FRONT_ENDS, max(1, (os.cpu_count() or 1) // 4))
