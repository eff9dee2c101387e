"""API keys with several front ends: wrong keys are counted once, and cookies are valid in all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.front_end import remote_attempts
from qkv.serving.front_end.channel import Kind
from qkv.serving.front_end.remote_attempts import KeyAnswer, RemoteAttempts, answer_to
from qkv.serving.http.access.auth import Keys
from qkv.serving.http.access.auth_attempts import ALLOWED, AuthAttempts, TooManyAttempts
from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from support.serving_fixtures import Models
from support.small_server import Separated, hosting, separated
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("without_shape_checks")
KEY = "the-key-of-this-server"


@pytest.fixture(scope="module")
def host(models: Models) -> Iterator[ModelHost]:
    host = hosting({"gpt": models["gpt"]})
    yield host
    host.close()


@contextmanager
def only(server: Separated, chosen: int) -> Iterator[str]:
    """The URL of a server of which one front end alone accepts connections."""
    others = [child for index, child in enumerate(server.children) if index != chosen]
    for child in others:
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda child=child: is_stopped(child.pid))

    try:
        yield server.url
    finally:
        for child in others:
            os.kill(child.pid, signal.SIGCONT)


def is_stopped(process: int) -> bool:
    status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    return status.rpartition(")")[2].split()[0] == "T"


def status_with(url: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(url + "/v1/models", headers=headers, timeout=PATIENCE).status_code


def test_wrong_keys_of_all_front_ends_are_counted_together(host: ModelHost) -> None:
    with separated(host, AccessRules(keys=(KEY,)), count=2) as server:
        server.app.attempts.clock = lambda: 1000.0
        for number in range(ALLOWED):
            with only(server, number % 2) as url:
                assert status_with(url, f"wrong-key-{number}") == 401

        for chosen in range(2):
            with only(server, chosen) as url:
                assert status_with(url, "another-key") == 429
                assert status_with(url, KEY) == 429

        server.app.attempts.clock = lambda: 2000.0
        with only(server, 0) as url:
            assert status_with(url, KEY) == 200

        # The other one accepts a key that this address has used, also while it must pause
        server.app.attempts.histories["127.0.0.1"].resumes = 3000.0
        with only(server, 1) as url:
            assert status_with(url, "another-key") == 429
            assert status_with(url, KEY) == 200


def test_a_browser_is_signed_in_at_all_front_ends(host: ModelHost) -> None:
    with separated(host, AccessRules(keys=(KEY,)), count=2) as server:
        with only(server, 0) as url:
            answer = httpx.post(url + "/sign-in", data={"key": KEY}, timeout=PATIENCE)
            assert answer.status_code == 303

        cookies = dict(answer.cookies)
        for chosen in range(2):
            with only(server, chosen) as url:
                models = httpx.get(url + "/v1/models", cookies=cookies, timeout=PATIENCE)
                assert models.status_code == 200


# Without processes


class Engine:
    """The other end of a channel: answers questions about keys when the test says so."""

    def __init__(self) -> None:
        self.questions: list[Any] = []
        self.attempts = AuthAttempts(Keys([KEY]))

    def send_soon(self, kind: Kind, question: Any) -> None:
        assert kind is Kind.CHECK_KEY
        self.questions.append(question)

    def answer(self, remote: RemoteAttempts) -> None:
        for question in self.questions:
            remote.receive(answer_to(question, self.attempts))

        self.questions = []


async def checked(remote: RemoteAttempts, engine: Engine, key: str, address: str = "a") -> Any:
    task = asyncio.create_task(remote.check(address, key))
    await asyncio.sleep(0)
    engine.answer(remote)
    return await task


def remote_attempts_of(engine: Engine) -> RemoteAttempts:
    host: Any = SimpleNamespace(channel=engine)
    return RemoteAttempts(host)


def test_an_accepted_key_is_asked_about_once_per_address() -> None:
    async def check() -> None:
        engine = Engine()
        remote = remote_attempts_of(engine)
        assert await checked(remote, engine, KEY) == 0
        assert await remote.check("a", KEY) == 0  # nobody answers
        assert await checked(remote, engine, KEY, "b") == 0
        assert await checked(remote, engine, "wrong-key") is None
        assert not remote.waiting

    asyncio.run(check())


def test_a_pause_of_the_engine_is_one_of_the_front_end() -> None:
    async def check() -> None:
        engine = Engine()
        engine.attempts.clock = lambda: 1000.0
        remote = remote_attempts_of(engine)
        for number in range(ALLOWED):
            assert await checked(remote, engine, f"wrong-{number}") is None

        with pytest.raises(TooManyAttempts) as pause:
            await checked(remote, engine, KEY)

        assert pause.value.seconds == 1.0

    asyncio.run(check())


def test_an_engine_that_is_gone_refuses_waiting_keys() -> None:
    async def check() -> None:
        remote = remote_attempts_of(Engine())
        task = asyncio.create_task(remote.check("a", KEY))
        await asyncio.sleep(0)
        remote.lose()
        with pytest.raises(RequestRefused) as refusal:
            await task

        assert refusal.value.status == 503
        remote.receive(KeyAnswer(1, 0, None))  # too late, and ignored

    asyncio.run(check())


def test_accepted_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_attempts, "MAX_ADDRESSES", 2)

    async def check() -> None:
        engine = Engine()
        remote = remote_attempts_of(engine)
        for address in "abc":
            assert await checked(remote, engine, KEY, address) == 0

        assert [address for address, _ in remote.accepted] == ["b", "c"]

    asyncio.run(check())
