"""Chat templates and tokenization: until the deadline, and in a bounded pool of each model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.model_host import ModelHost
from qkv.serving.preparation import WORKERS, PreparationJob, PreparationPool
from qkv.serving.routes import chat_completions
from support.serving_fixtures import Models
from support.small_server import Running, hosting, running
from support.waiting import PATIENCE, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 2}


class Stuck:
    """Work that does not end by itself."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), 0

    def work(self) -> str:
        self.begun += 1
        assert self.free.wait(PATIENCE)
        return "done"


def soon() -> float:
    return time.monotonic() + PATIENCE


def test_the_deadline_covers_the_preparation() -> None:
    pool, stuck = PreparationPool("gpt"), Stuck()

    async def late() -> None:
        with pytest.raises(RequestRefused, match="timeout: ") as refused:
            await pool.run(stuck.work, time.monotonic() + 0.01)
        assert refused.value.status == 408

    asyncio.run(late())
    assert len(pool.running) == 1  # it cannot be stopped, but occupies one thread only
    stuck.free.set()
    until(lambda: not pool.running)


def test_what_the_work_raises_is_raised() -> None:
    async def fails(error: BaseException) -> None:
        def work() -> None:
            raise error

        await PreparationPool("gpt").run(work, soon())

    for error in (
        ValueError("text: it is empty"),
        TimeoutError("its own"),
        RequestRefused(400, "no"),
    ):
        with pytest.raises(type(error), match=str(error)):
            asyncio.run(fails(error))
    for error in (SystemExit(1), StopIteration()):
        with pytest.raises(RuntimeError, match=f"model: {type(error).__name__}"):
            asyncio.run(fails(error))


def test_a_pool_that_is_stuck_refuses_and_one_that_is_full_too() -> None:
    pool, stuck = PreparationPool("gpt", workers=2, queue=3), Stuck()

    async def crowd() -> None:
        tasks = [asyncio.create_task(pool.run(stuck.work, soon())) for _ in range(5)]
        while len(pool.waiting) < 3 or stuck.begun < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(RequestRefused, match="model: gpt: 3 requests already wait") as full:
            await pool.run(stuck.work, soon())
        assert (full.value.status, full.value.retry_after) == (429, 5.0)
        tasks[2].cancel()  # a client that disconnects leaves the queue
        await asyncio.wait({tasks[2]})
        tasks.append(asyncio.create_task(pool.run(stuck.work, soon())))
        while len(pool.waiting) < 3:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not pool.waiting
        with pytest.raises(RequestRefused, match=r"model: gpt: all 2 threads .*stuck") as refused:
            await pool.run(stuck.work, soon())
        assert (refused.value.status, refused.value.retry_after) == (503, 5.0)
        assert stuck.begun == 2  # abandoned jobs are not started
        stuck.free.set()
        while pool.running:
            await asyncio.sleep(0.001)
        assert (
            await asyncio.gather(*(pool.run(stuck.work, soon()) for _ in range(5))) == ["done"] * 5
        )

    asyncio.run(crowd())


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = PreparationPool("gpt")

    async def ask() -> None:
        await pool.run(lambda: None, soon())

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RequestRefused, match="no thread left"):
            asyncio.run(ask())
    assert not pool.running
    asyncio.run(ask())


def test_a_thread_that_cannot_be_started_takes_no_job_from_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The waiting job is left to a worker that runs."""

    def none(self: threading.Thread) -> None:
        pool.waiting.append(other)  # of another event loop, meanwhile
        raise RuntimeError("can't start new thread")

    async def refused() -> None:
        nonlocal other
        other = PreparationJob(lambda: None)
        with pytest.raises(RequestRefused, match="no thread left"):
            await pool.run(lambda: None, soon())

    pool, other = PreparationPool("gpt"), cast(PreparationJob, None)
    monkeypatch.setattr(threading.Thread, "start", none)
    asyncio.run(refused())
    assert not pool.running
    assert list(pool.waiting) == [other]


def test_an_answered_request_occupies_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request is not refused because all threads are stuck."""
    pool, held, real = (
        PreparationPool("gpt", workers=1),
        threading.Event(),
        PreparationJob.hand_over,
    )

    def slow_to_return(self: PreparationJob, value: Any, error: Exception | None) -> None:
        real(self, value, error)
        assert held.wait(PATIENCE)

    async def ask_twice() -> list[int]:
        first = await pool.run(lambda: 1, soon())
        assert not pool.running
        held.set()
        return [first, await pool.run(lambda: 2, soon())]

    monkeypatch.setattr(PreparationJob, "hand_over", slow_to_return)
    assert asyncio.run(ask_twice()) == [1, 2]


# Over HTTP


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    """The chat template of the model "loops" does not end."""
    stuck, real = Stuck(), chat_completions.encode_chat

    def looping(tokenizer: Any, messages: Any) -> list[int]:
        if tokenizer.chat_template.startswith("{# loops #}"):
            stuck.work()
        return real(tokenizer, messages)

    monkeypatch.setattr(chat_completions, "encode_chat", looping)
    yield stuck
    stuck.free.set()


@pytest.fixture(scope="module")
def host(models: Models) -> Iterator[ModelHost]:
    model, tokenizer = models["chat"]
    looping = tokenizer.with_special_tokens(
        [], chat_template="{# loops #}" + tokenizer.chat_template
    )
    host = hosting({"chat": models["chat"], "loops": (model, looping)})
    yield host
    host.close()


def abandoned(server: Running, stuck: Stuck, count: int) -> None:
    """Clients that disconnect while their chat is prepared."""
    body = json.dumps({**CHAT, "model": "loops"}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    )
    begun = stuck.begun
    for number in range(count):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
            line.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            if number < WORKERS:
                until(lambda number=number: stuck.begun == begun + number + 1)


def test_abandoned_chats_of_one_model_block_no_other(host: ModelHost, stuck: Stuck) -> None:
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        abandoned(server, stuck, 8)
        until(lambda: not server.app.running)
        pool = host.entries["loops"].preparation
        assert (len(pool.running), len(pool.waiting), stuck.begun) == (WORKERS, 0, WORKERS)
        refused = http.post("/v1/chat/completions", json={**CHAT, "model": "loops"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        well = http.post("/v1/chat/completions", json={**CHAT, "model": "chat"})
        assert well.status_code == 200
        long = {"model": "chat", "text": "the cat " * 1000}
        assert http.post("/v1/tokenize", json=long).json()["count"] > 1000
        stuck.free.set()
        until(lambda: not pool.running)
        assert http.post("/v1/chat/completions", json={**CHAT, "model": "loops"}).status_code == 200


def test_a_chat_that_is_not_prepared_in_time_is_a_timeout(host: ModelHost, stuck: Stuck) -> None:
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        late = http.post("/v1/chat/completions", json={**CHAT, "model": "loops", "timeout": 0.05})
        assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
        stuck.free.set()
        until(lambda: not host.entries["loops"].preparation.running)


def test_a_server_stops_while_a_template_loops(host: ModelHost, stuck: Stuck) -> None:
    """`Running.stop` asserts that it stops."""
    with running(host, drain=0.1) as server:
        abandoned(server, stuck, 1)
        server.server.handle_exit(15, None)
    assert host.entries["loops"].preparation.running
