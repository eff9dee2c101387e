"""A panic of the Rust library `tokenizers`, or a dead engine thread, affects no other request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from qkv.generation.sampling_params import SamplingParams
from qkv.serving.engine.generation_request import GenerationRequest, RequestRefused
from qkv.serving.model_host import ModelHost
from qkv.text import Tokenizer
from qkv.text.rust_panics import TokenizerPanic
from support.engines import Steps
from support.families import gpt
from support.holding import HeldEngine, HeldJob
from support.small_server import hosting, running
from support.waiting import PATIENCE, until
from unit.serving.test_model_host import ids_of

X = 3
"""The id of "x", which the decoder panics on: it strips more than the token has."""


def panicking(*, encode: bool = False) -> Tokenizer:
    inner = tokenizers.Tokenizer(
        models.WordLevel({sign: id for id, sign in enumerate("abcxefghijklm")}, "a")
    )
    inner.pre_tokenizer = pre_tokenizers.FixedLength(0) if encode else pre_tokenizers.Whitespace()
    inner.decoder = decoders.Strip("x", 0, 2)
    return Tokenizer(inner)


@pytest.fixture
def host() -> Iterator[ModelHost]:
    host = hosting({"decodes": (gpt(), panicking()), "encodes": (gpt(), panicking(encode=True))})
    yield host
    host.close()


def test_a_panic_is_an_error_with_a_message() -> None:
    with pytest.raises(
        TokenizerPanic,
        match=r"tokenizer: .*panicked.*chunk size",
    ):
        panicking(encode=True).encode("a b")
    with pytest.raises(TokenizerPanic, match="chunk size"):
        panicking(encode=True).encode_as_text("a b")
    with pytest.raises(TokenizerPanic, match=r"tokenizer: .*panicked"):
        panicking().decode([X])
    assert panicking().decode([0, 1]) == "ab"


def test_a_panic_at_a_token_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(gpt(), panicking(), cache=1 << 20)
    never = SamplingParams(forbidden=(X,))
    beside = steps.request([1, 2], max_tokens=6, sampling=never, stream=True)
    bad = steps.request([1, 2], max_tokens=6, sampling=SamplingParams(forced={1: X}), stream=True)
    stopping = steps.request(
        [1, 2], max_tokens=6, sampling=SamplingParams(forced={0: X}), stop=("zz",)
    )
    steps.finish()
    for handle in (bad, stopping):
        with pytest.raises(RuntimeError, match="panicked"):
            steps.chunks(handle)
    assert len(steps.ids(beside)[0]) == 6
    assert steps.used == 0
    assert [record.getMessage().split(" at ")[0] for record in caplog.records] == [
        "TokenizerPanic"
    ] * 2


@pytest.mark.parametrize("name", ["panic", "exit"])
def test_work_that_panics_or_exits_does_not_end_the_engine(host: ModelHost, name: str) -> None:
    def work(model: Any, tokenizer: Tokenizer) -> None:
        if name == "exit":
            raise SystemExit(3)
        tokenizer.inner.encode("a b")  # the library itself, without the wrapper

    job = host.submit_job("encodes", work)
    with pytest.raises(RuntimeError, match=r"model: (PanicException|SystemExit)"):
        job.wait()
    assert (
        len(
            ids_of(
                host.submit(
                    "decodes",
                    GenerationRequest(
                        prompt=[1], max_tokens=3, sampling=SamplingParams(forbidden=(X,))
                    ),
                )
            )
        )
        == 3
    )


def test_a_panic_over_http_is_one_response_and_one_log_line(
    host: ModelHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        for size in (1, 4000):  # in the event loop, and in a thread of its own
            caplog.clear()
            response = http.post(
                "/v1/completions", json={"model": "encodes", "prompt": "a " * size}
            )
            assert (response.status_code, response.json()["error"]["code"]) == (
                500,
                "internal_error",
            )
            assert [record.getMessage().split(" at ")[0] for record in caplog.records] == [
                "TokenizerPanic"
            ]
            assert caplog.records[0].exc_info is None
        with_echo = {"model": "decodes", "prompt": "a x", "max_tokens": 1, "echo": True}
        assert http.post("/v1/completions", json=with_echo).status_code == 500
        well = {"model": "decodes", "prompt": [0, 1], "max_tokens": 0, "echo": True}
        assert http.post("/v1/completions", json=well).json()["choices"][0]["text"] == "ab"
        assert http.get("/health").json()["status"] == "ready"


# The engine's thread ends


class Killed(BaseException):
    """An error that the engine does not expect."""


def test_a_dead_engine_answers_all_requests_and_fails_its_health(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running and waiting requests, jobs, and requests that come later."""
    ended, job = threading.Event(), HeldJob()
    host.on_failure = ended.set

    def killed() -> bool:
        raise Killed

    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        assert (http.get("/health").json()["status"], http.get("/health").json()["error"]) == (
            "ready",
            None,
        )
        held = HeldEngine(host)
        blocked = host.submit_job("decodes", job)
        assert job.reached.wait(PATIENCE)
        runs = host.submit(
            "decodes",
            GenerationRequest(prompt=[1], max_tokens=15, sampling=SamplingParams(forbidden=(X,))),
        )
        monkeypatch.setattr(host, "run_step", killed)
        waits = [
            host.submit("decodes", GenerationRequest(prompt=[1], max_tokens=9)),
            host.submit_job("encodes", job),
        ]
        held.free.set()
        assert ended.wait(PATIENCE)
        job.free.set()
        assert blocked.wait() is None
        for handle in (runs, *waits):
            with pytest.raises(RequestRefused, match="its engine has failed") as refused:
                list(handle)
            assert refused.value.status == 503
        with pytest.raises(RequestRefused, match="its engine has failed"):
            host.submit("decodes", GenerationRequest(prompt=[1], max_tokens=3))
        health = http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert health.json()["error"] == "the engine's thread ended (Killed)"
        assert (
            http.post("/v1/completions", json={"model": "decodes", "prompt": "a"}).status_code
            == 503
        )
        host.thread.join(PATIENCE)
        host.failure = None  # a dead thread is never healthy
        assert (http.get("/health").status_code, http.get("/health").json()["status"]) == (
            503,
            "failed",
        )


def test_a_model_that_was_still_loading_is_not_served_by_a_dead_engine() -> None:
    host, gate = ModelHost(cache=1 << 22), threading.Event()
    host.fail(Killed())
    host.add("late", lambda: (gate.wait(PATIENCE), (gpt(), panicking()))[1])
    gate.set()
    until(lambda: host.entries["late"].state == "failed")
