"""Addresses of the server: accepted Host headers, CORS origins and the URL of the page."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
EVERY_ADDRESS = ("0.0.0.0", "::")


def host_names(host: str, *, has_keys: bool, open_to_all: bool) -> tuple[str, ...] | None:
    """Accepted Host headers; a local server only answers to its own names (DNS rebinding)."""
    if not host.strip():
        raise ValueError("host: expected an address, such as 127.0.0.1, not an empty one")
    if is_loopback(host):
        name = f"[{host}]" if ":" in host else host.lower()
        return tuple(dict.fromkeys([*LOOPBACK, name]))
    if not has_keys and not open_to_all:
        raise ValueError(
            f"host: {host} can be reached from other machines, and there is no key; give one "
            "(--key-file), or accept everybody (--open-to-all)"
        )

    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_origins(origins: Sequence[str]) -> None:
    """Raise ValueError if one of them is not an origin."""
    for origin in origins:
        parts = urlsplit(origin)
        valid = parts.scheme in ("http", "https") and parts.netloc and not parts.path
        if origin != "*" and not valid:
            raise ValueError(
                f"cors: expected an origin such as https://example.org, or *, not {origin!r}"
            )


def page_address(host: str, port: int) -> str:
    """The address of the page for a browser on this machine."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    elif ":" in host:
        host = f"[{host}]"

    return f"http://{host}:{port}"
