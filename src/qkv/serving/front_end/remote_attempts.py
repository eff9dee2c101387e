"""API keys in a front end: the engine's process checks them, and counts all wrong ones.

Several front ends that counted by themselves would allow a client as many guesses each.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import OrderedDict
from typing import NamedTuple

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.front_end.channel import Kind
from qkv.serving.front_end.remote_host import ENGINE_GONE, RemoteHost
from qkv.serving.http.access.auth_attempts import MAX_ADDRESSES, AuthAttempts, TooManyAttempts


class KeyQuestion(NamedTuple):
    """A key that a client has sent."""

    number: int
    address: str
    key: str


class KeyAnswer(NamedTuple):
    """What the engine's process says about a key."""

    number: int
    key_index: int | None
    """Which of the server's keys it is; None for a wrong one."""
    pause: float | None
    """Seconds in which no key of this address is accepted, if that is so."""


class RemoteAttempts:
    """Asks the engine's process about every key that it has not accepted from the same address."""

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self.numbers = itertools.count(1)
        self.waiting: dict[int, asyncio.Future[KeyAnswer]] = {}
        self.lost = False
        self.accepted: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        """Indices of keys by address and hash of the key."""

    async def check(self, address: str, key: str) -> int | None:
        """The index of the key, or None if it is wrong; TooManyAttempts during a pause."""
        known = (address, hashlib.sha256(key.encode("utf-8", "replace")).digest())
        if known in self.accepted:
            return self.accepted[known]

        answer = await self.ask(address, key)
        if answer.pause is not None:
            raise TooManyAttempts(answer.pause)

        if answer.key_index is not None:
            self.accepted[known] = answer.key_index
            if len(self.accepted) > MAX_ADDRESSES:
                self.accepted.popitem(last=False)

        return answer.key_index

    async def ask(self, address: str, key: str) -> KeyAnswer:
        if self.lost:
            raise RequestRefused(503, ENGINE_GONE)

        number = next(self.numbers)
        self.waiting[number] = asyncio.get_running_loop().create_future()
        self.host.channel.send_soon(Kind.CHECK_KEY, KeyQuestion(number, address, key))
        try:
            return await self.waiting[number]
        finally:
            del self.waiting[number]

    def receive(self, answer: KeyAnswer) -> None:
        """The engine's process has answered."""
        waiting = self.waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def lose(self) -> None:
        """The engine's process is gone."""
        self.lost = True
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(RequestRefused(503, ENGINE_GONE))


def answer_to(question: KeyQuestion, attempts: AuthAttempts) -> KeyAnswer:
    """Check a key in the engine's process."""
    try:
        index = attempts.check(question.address, question.key)
    except TooManyAttempts as error:
        return KeyAnswer(question.number, None, error.seconds)

    return KeyAnswer(question.number, index, None)
