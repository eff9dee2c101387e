"""Wrong keys are slowed down: a client address that sent several must pause before it may try
another key.

Each address may send `ALLOWED` different wrong keys; each one more doubles its pause, up to
`LONGEST_PAUSE` seconds. While many wrong keys come in all (`MANY` within a minute, from however
many addresses) the allowance of every address is one. During a pause no key of that address is
accepted, so that guessing goes no faster, with one exception: a key that was accepted from the same
address before. So nobody is locked out by the wrong keys of somebody else who shares the address (a
proxy, a NAT), nor by those of other addresses; but who shares the address of a key's user can guess
that key without a pause. Long random keys are the protection, this is a brake. A client that
repeats one wrong key guesses nothing, and is not slowed down.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope

from qkv.serving.http.auth import Keys

ALLOWED = 8
LONGEST_PAUSE = 60.0
MANY = 64
FORGOTTEN = 600.0
"""Seconds without a wrong key after which an address starts anew."""
MOST_ADDRESSES = 4096
"""Addresses that are remembered; the one not seen for longest is forgotten first."""


class TooManyAttempts(Exception):
    """No key is accepted from this address for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"key: several wrong ones came from your address; try again in {math.ceil(seconds)} s"
        )
        self.seconds = seconds


@dataclass(slots=True)
class History:
    """What one address sent."""

    wrong: int = 0
    latest: float = 0.0
    resumes: float = 0.0
    seen: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """Hashes of its latest wrong keys."""
    accepted: set[int] = field(default_factory=set)
    """Indices of the keys that were accepted from there."""


class AuthAttempts:
    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys, self.clock = keys, clock
        self.histories: OrderedDict[str, History] = OrderedDict()
        self.minute, self.wrong_this_minute = 0, 0

    def check(self, address: str, key: str) -> int | None:
        """The index of the key, or None if it is wrong. Raises `Paused` where it may not be tried
        now.
        """
        now, index, history = self.clock(), self.keys.place(key), self.history(address)

        if index is not None and index in history.accepted:
            return index
        if now < history.resumes:
            raise TooManyAttempts(history.resumes - now)

        if index is not None:
            history.accepted.add(index)
        elif hash(key) not in history.seen:
            history.seen.append(hash(key))
            self.count(history, now)

        return index

    def history(self, address: str) -> History:
        history = self.histories.setdefault(address, History())
        self.histories.move_to_end(address)
        if len(self.histories) > MOST_ADDRESSES:
            self.histories.popitem(last=False)

        return history

    def count(self, history: History, now: float) -> None:
        """One more wrong key, and the pause that follows it."""
        if self.minute != now // 60:
            self.minute, self.wrong_this_minute = int(now // 60), 0

        self.wrong_this_minute += 1

        if now - history.latest > FORGOTTEN:
            history.wrong = 0

        history.wrong += 1
        history.latest = now

        allowed = 1 if self.wrong_this_minute > MANY else ALLOWED
        if history.wrong >= allowed:
            history.resumes = now + min(LONGEST_PAUSE, 2.0 ** min(history.wrong - allowed, 10))


def address_of(scope: Scope) -> str:
    """The client's address. One of IPv6 stands for its /64 network, which is what a single
    subscriber has.
    """
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
