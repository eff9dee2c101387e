"""Wrong keys: guessing is slowed down per address and in total, and other clients do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from qkv.serving.http.access import auth_attempts as attempts_module
from qkv.serving.http.access.auth import Keys
from qkv.serving.http.access.auth_attempts import (
    ALLOWED,
    FORGOTTEN,
    LONGEST_PAUSE,
    MANY,
    AuthAttempts,
    TooManyAttempts,
    address_of,
)
from qkv.serving.http.middleware import RequestMiddleware
from qkv.serving.model_host import ModelHost
from support.small_server import asgi_app

KEYS = ("first-key-of-two", "second-key-of-two")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> AuthAttempts:
    return AuthAttempts(Keys(KEYS), clock)


def paused(attempts: AuthAttempts, key: str, address: str = "a") -> float:
    with pytest.raises(TooManyAttempts) as pause:
        attempts.check(address, key)
    return pause.value.seconds


def guess(attempts: AuthAttempts, clock: Clock, count: int, address: str = "a") -> None:
    """Send `count` wrong keys, each as soon as it is allowed."""
    for number in range(count):
        clock.now = max(clock.now, attempts.history(address).resumes)
        assert attempts.check(address, f"wrong-key-{number}") is None


def test_the_pause_of_an_address_doubles_with_every_wrong_key(
    attempts: AuthAttempts, clock: Clock
) -> None:
    guess(attempts, clock, ALLOWED)
    assert clock.now == 1000.0
    pauses = []
    for number in range(9):
        pauses.append(paused(attempts, KEYS[0]))
        clock.now += pauses[-1] / 2
        assert paused(attempts, "another") == pauses[-1] / 2  # trying earlier does not lengthen it
        clock.now += pauses[-1] / 2
        assert attempts.check("a", f"later-{number}") is None
    assert pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_PAUSE] * 3]
    clock.now += LONGEST_PAUSE
    assert attempts.check("a", KEYS[1]) == 1


def test_an_address_is_forgiven_after_a_while(attempts: AuthAttempts, clock: Clock) -> None:
    guess(attempts, clock, ALLOWED + 3)
    clock.now += FORGOTTEN + 1
    for number in range(ALLOWED - 1):
        assert attempts.check("a", f"again-{number}") is None
    assert attempts.check("a", KEYS[0]) == 0


def test_a_key_that_was_accepted_from_an_address_is_accepted_there_during_a_pause(
    attempts: AuthAttempts, clock: Clock
) -> None:
    """Behind a proxy all clients have the same address."""
    assert attempts.check("a", KEYS[0]) == 0
    guess(attempts, clock, ALLOWED)
    assert attempts.check("a", KEYS[0]) == 0
    assert paused(attempts, KEYS[1]) > 0  # not used there before: it could be a guess
    assert attempts.check("b", KEYS[1]) == 1


def test_repeating_one_wrong_key_causes_no_pause(attempts: AuthAttempts) -> None:
    for _ in range(10 * MANY):
        assert attempts.check("a", "an-old-key") is None
    assert attempts.check("a", KEYS[0]) == 0


def test_many_addresses_together_have_one_wrong_key_each(
    attempts: AuthAttempts, clock: Clock
) -> None:
    for number in range(MANY):
        assert attempts.check(f"bot-{number}", "wrong-key-0") is None
    assert attempts.check("bot-0", "wrong-key-1") is None  # now it is one too many
    assert paused(attempts, "wrong-key-2", "bot-0") > 0
    for number in range(20):
        assert attempts.check(f"new-{number}", "wrong-key-0") is None
        assert paused(attempts, "wrong-key-1", f"new-{number}") >= 1
        assert attempts.check(f"user-{number}", KEYS[0]) == 0  # others do not lock out a right key
    clock.now += 120
    assert attempts.check("later", "wrong-key-0") is None
    assert attempts.check("later", "wrong-key-1") is None


def test_no_attack_fills_the_memory(
    attempts: AuthAttempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_module, "MAX_ADDRESSES", 50)
    for number in range(500):
        attempts.check(f"bot-{number}", f"wrong-key-{number}")
    assert len(attempts.histories) == 50
    for number in range(500):
        attempts.histories["bot-499"].resumes = 0
        attempts.check("bot-499", f"other-{number}" * 100)
    assert len(attempts.histories["bot-499"].recent) == 16


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 1), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("x" * 1000, 1), "x" * 64),
        (None, ""),
    ],
)
def test_the_address_of_a_client(client: Any, address: str) -> None:
    assert address_of({"client": client}) == address


# Over HTTP


def visited(
    host: ModelHost,
    visit: Callable[[RequestMiddleware, Callable[[str], httpx.AsyncClient]], Awaitable[None]],
) -> None:
    """Call `visit` with the application and a client per address."""
    app = asgi_app(host, keys=KEYS)
    app.attempts.clock = Clock()

    def client(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost:8000")

    async def run() -> None:
        await visit(app, client)

    asyncio.run(run())


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_header_and_the_form_count_alike(host: ModelHost) -> None:
    async def visit(app: RequestMiddleware, client: Callable[[str], httpx.AsyncClient]) -> None:
        async with client("192.0.2.1") as attacker, client("192.0.2.2") as user:
            for number in range(ALLOWED // 2):
                wrong = await attacker.get("/v1/models", headers=bearer(f"wrong-key-{number}"))
                assert wrong.status_code == 401
                form = await attacker.post("/sign-in", data={"key": f"wrong-form-{number}"})
                assert form.status_code == 401
            for key in ("wrong-key", KEYS[0]):
                response = await attacker.get("/v1/models", headers=bearer(key))
                assert (response.status_code, response.headers["retry-after"]) == (429, "1")
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "too_many_wrong_keys")
                assert error["message"].startswith("key: ")
                assert "try again in 1 s" in error["message"]
                form = await attacker.post("/sign-in", data={"key": key})
                assert (form.status_code, form.headers["retry-after"]) == (429, "1")
                assert "try again in 1 s" in form.text
                assert "set-cookie" not in form.headers
            assert (await attacker.get("/v1/models")).status_code == 401  # no key is no guess
            assert (await attacker.get("/health")).status_code == 200
            assert (await user.get("/v1/models", headers=bearer(KEYS[0]))).status_code == 200
            assert (await user.post("/sign-in", data={"key": KEYS[1]})).status_code == 303
            assert isinstance(app.attempts.clock, Clock)
            app.attempts.clock.now += 1
            assert (await attacker.get("/v1/models", headers=bearer(KEYS[0]))).status_code == 200

    visited(host, visit)


def test_a_signed_in_browser_does_not_wait(host: ModelHost) -> None:
    async def visit(app: RequestMiddleware, client: Callable[[str], httpx.AsyncClient]) -> None:
        async with client("192.0.2.1") as browser:
            assert (await browser.post("/sign-in", data={"key": KEYS[0]})).status_code == 303
            for number in range(ALLOWED + 1):
                async with client("192.0.2.1") as other:
                    response = await other.get("/v1/models", headers=bearer(f"wrong-key-{number}"))
            assert response.status_code == 429
            assert (await browser.get("/v1/models")).status_code == 200

    visited(host, visit)


def test_health_does_not_reveal_whether_a_key_is_right_during_a_pause(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key it says why a model could not be loaded."""
    monkeypatch.setattr(host.entries["rnn"], "error", "weights: they are broken")

    async def visit(app: RequestMiddleware, client: Callable[[str], httpx.AsyncClient]) -> None:
        async def error_shown(attacker: httpx.AsyncClient, key: str) -> str:
            return str(
                (await attacker.get("/health", headers=bearer(key))).json()["models"]["rnn"][
                    "error"
                ]
            )

        async with client("192.0.2.1") as attacker, client("192.0.2.2") as user:
            for number in range(ALLOWED):
                assert await error_shown(attacker, f"wrong-key-{number}") == "it cannot be loaded"
            assert await error_shown(attacker, KEYS[0]) == "it cannot be loaded"
            assert await error_shown(user, KEYS[0]) == "weights: they are broken"

    visited(host, visit)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"&".join(b"a%d=1" % number for number in range(9)),
            "body: expected a form of at most 8 fields",
        ),
        (b"key=x&" * 9, "body: expected a form of at most 8 fields"),
        (b"&" * 4000, "body: expected a form of at most 8 fields"),
        (b"key=" + b"x" * (1 << 20), "body: expected a form of at most 4,096 bytes"),
        (b"key=first&key=second", "key: expected this field once, not 2 times"),
        (b"", "key: expected this field once, not 0 times"),
        (b"Key=x", "key: expected this field once, not 0 times"),
    ],
)
def test_an_invalid_form_is_a_bad_request(host: ModelHost, content: bytes, message: str) -> None:
    response = submit_form(host, content)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    "content", [b"key=", b"key=%", b"key=%zz%u1234", b"key=%ff%fe", b"key=\xff\xfe\x00", b"key=%00"]
)
def test_a_form_with_any_other_key_is_a_wrong_key(host: ModelHost, content: bytes) -> None:
    assert submit_form(host, content).status_code == 401
    assert (
        submit_form(
            host, content, "application/x-www-form-urlencoded; charset=no-such-charset"
        ).status_code
        == 401
    )
    assert submit_form(host, content, "multipart/form-data; boundary=x").status_code == 415


def submit_form(
    host: ModelHost, content: bytes, kind: str = "application/x-www-form-urlencoded"
) -> httpx.Response:
    responses: list[httpx.Response] = []

    async def visit(app: RequestMiddleware, client: Callable[[str], httpx.AsyncClient]) -> None:
        async with client("192.0.2.1") as browser:
            responses.append(
                await browser.post("/sign-in", content=content, headers={"content-type": kind})
            )

    visited(host, visit)
    return responses[0]
