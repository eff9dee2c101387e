"""Auth: API keys, the session cookie of a browser, host names and origins."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

COOKIE = "qkv"
MIN_LENGTH = 8


def bearer_key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer KEY`; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page of this server sends the request; a proxy in front may use https."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


class Keys:
    """The keys of a server, compared in constant time; without any, all requests are accepted."""

    def __init__(self, keys: Iterable[str] = (), secret: bytes | None = None) -> None:
        """Keep digests of the keys; `secret` signs the session cookies (None is a new one)."""
        self.digests: list[bytes] = []
        for key in dict.fromkeys(keys):
            if len(key) < MIN_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
                # The message does not repeat the key.
                raise ValueError(
                    f"key: must have at least {MIN_LENGTH} characters, all ASCII, and no spaces"
                )

            self.digests.append(hashlib.sha256(key.encode()).digest())

        secret = secret or secrets.token_bytes(32)
        self.cookies = [hmac.new(secret, digest, "sha256").hexdigest() for digest in self.digests]

    def __bool__(self) -> bool:
        return bool(self.digests)

    def index(self, key: str) -> int | None:
        """Index of a key, or None; all keys are compared, so that the time reveals nothing."""
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        matches = [hmac.compare_digest(digest, other) for other in self.digests]
        return matches.index(True) if any(matches) else None

    def cookie_for(self, index: int) -> str:
        """The Set-Cookie header that signs a browser in."""
        return f"{COOKIE}={self.cookies[index]}; Path=/; HttpOnly; SameSite=Strict"

    def admits_cookie(self, cookie: str) -> bool:
        """Whether a session cookie is valid; it is compared with all, as a key is."""
        value = cookie.encode("utf-8", "replace")
        matches = [hmac.compare_digest(value, other.encode()) for other in self.cookies]
        return any(matches)
