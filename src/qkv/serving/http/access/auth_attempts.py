"""Rate limit of wrong API keys: an address that sends several must pause before the next one.

Every address may send `ALLOWED` different wrong keys; each further one doubles its pause, up to
`LONGEST_PAUSE` seconds. While there are many wrong keys in total (`MANY` within a minute, from any
number of addresses), every address may send one only. During a pause no key of that address is
accepted, so that guessing is no faster, with one exception: a key that was accepted from the same
address before. Users behind the same proxy or NAT as an attacker are therefore not locked out, nor
are other addresses; but an attacker at a user's address can guess that user's key without a pause.
Long random keys are the protection, this is only a brake. Repeating one wrong key is not a guess
and causes no pause.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope

from qkv.serving.http.access.auth import Keys

ALLOWED = 8
LONGEST_PAUSE = 60.0
MANY = 64
FORGOTTEN = 600.0
"""Seconds without a wrong key after which an address starts anew."""
MAX_ADDRESSES = 4096
"""Addresses that are remembered; the least recently used is forgotten first."""


class TooManyAttempts(Exception):
    """No key is accepted from this address for some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"key: too many wrong keys from your address; try again in {math.ceil(seconds)} s"
        )
        self.seconds = seconds


@dataclass(slots=True)
class History:
    """The wrong and accepted keys of one address."""

    wrong: int = 0
    latest: float = 0.0
    resumes: float = 0.0
    """When the pause ends."""
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """Hashes of the latest wrong keys."""
    accepted: set[int] = field(default_factory=set)
    """Indices of the keys that were accepted."""


class AuthAttempts:
    """Checks keys, and counts the wrong ones of every address."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys = keys
        self.clock = clock
        self.histories: OrderedDict[str, History] = OrderedDict()
        self.minute = 0
        self.wrong_this_minute = 0

    def check(self, address: str, key: str) -> int | None:
        """The index of the key, or None if it is wrong; TooManyAttempts during a pause."""
        now = self.clock()
        index = self.keys.index(key)
        history = self.history(address)

        if index is not None and index in history.accepted:
            return index
        if now < history.resumes:
            raise TooManyAttempts(history.resumes - now)

        if index is not None:
            history.accepted.add(index)
        elif hash(key) not in history.recent:
            history.recent.append(hash(key))
            self.count_wrong_key(history, now)

        return index

    def history(self, address: str) -> History:
        """The history of an address, which becomes the most recently used one."""
        history = self.histories.setdefault(address, History())
        self.histories.move_to_end(address)
        if len(self.histories) > MAX_ADDRESSES:
            self.histories.popitem(last=False)

        return history

    def count_wrong_key(self, history: History, now: float) -> None:
        """Count a wrong key, and start the pause that follows it."""
        if self.minute != now // 60:
            self.minute = int(now // 60)
            self.wrong_this_minute = 0

        self.wrong_this_minute += 1

        if now - history.latest > FORGOTTEN:
            history.wrong = 0

        history.wrong += 1
        history.latest = now

        allowed = 1 if self.wrong_this_minute > MANY else ALLOWED
        if history.wrong >= allowed:
            history.resumes = now + min(LONGEST_PAUSE, 2.0 ** min(history.wrong - allowed, 10))


def address_of(scope: Scope) -> str:
    """The client's address; for IPv6 its /64 network, which one subscriber has."""
    client = scope.get("client")
    if not client:
        return ""

    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return str(client[0])[:64]

    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)

    return str(ipaddress.ip_network((address, 64), strict=False))
