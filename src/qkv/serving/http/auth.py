"""Who may come in: keys compared in constant time, and a cookie for browsers that proves a key
without being one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

COOKIE = "qkv"
SHORTEST = 8


def bearer_key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer KEY`; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


class Keys:
    """None at all lets everybody in."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        found = list(dict.fromkeys(keys))
        for key in found:
            if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError(
                    f"key: expected {SHORTEST} letters, digits or signs or more, without spaces"
                )  # which one is not said

        self.digests = [hashlib.sha256(key.encode()).digest() for key in found]
        secret = secrets.token_bytes(32)  # a cookie is good for as long as this server runs
        self.cookies = [hmac.new(secret, digest, "sha256").hexdigest() for digest in self.digests]

    def __bool__(self) -> bool:
        return bool(self.digests)

    def place(self, key: str) -> int | None:
        """Which it is. All are compared, each in the same time, whatever the first ones said."""
        asked = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        same = [hmac.compare_digest(asked, digest) for digest in self.digests]
        return same.index(True) if any(same) else None

    def cookie_for(self, place: int) -> str:
        """The header that signs a browser in."""
        return f"{COOKIE}={self.cookies[place]}; Path=/; HttpOnly; SameSite=Strict"

    def admits_cookie(self, headers: Mapping[str, str]) -> bool:
        cookies = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        sent = [value.encode("utf-8", "replace") for name, _, value in cookies if name == COOKIE]
        matches = [hmac.compare_digest(each, own.encode()) for each in sent for own in self.cookies]

        return any(matches)  # every cookie was compared, so the time tells nothing
