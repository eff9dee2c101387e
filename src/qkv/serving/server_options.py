"""Options of a server, as `qkv serve` and `qkv.serving.serve` take them; imports no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from qkv.serving.addresses import check_origins

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
    """GiB of key-value cache per model, allocated at the start and never exceeded."""
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

    def check(self) -> None:
        """Raise ValueError if a number is out of range, or an origin is none."""
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name}: expected {least:,} to {most:,}, not {value:,}")

        check_origins(self.cors)
