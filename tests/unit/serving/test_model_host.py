"""The host: many clients at once, several models, a queue that ends, and leaving in good order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from qkv.generation import generate, row_seeds
from qkv.generation.sampling_params import SamplingParams
from qkv.models import GPT
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle, RequestRefused
from qkv.serving.model_host import ModelHost
from support.engines import WORDS
from support.families import bert, gpt, transformer
from support.waiting import PATIENCE, until

Start = Callable[..., ModelHost]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(gpt=model): a host that serves these, when they are loaded."""
    hosts: list[ModelHost] = []

    def made(how: dict[str, int] | None = None, **models: torch.nn.Module) -> ModelHost:
        host = ModelHost(**({"cache": 1 << 22} | (how or {})))
        hosts.append(host)
        for name, model in models.items():
            host.add(name, lambda model=model: (model, WORDS))
        host.start()
        until(lambda: all(each.state != "loading" for each in host.entries.values()))
        return host

    yield made
    for host in hosts:
        host.close()


def ids_of(handle: RequestHandle) -> list[int]:
    return [each.id for chunk in handle for each in chunk.tokens]


def float32(model: GPT) -> GPT:
    return model.float()


@pytest.mark.usefixtures("without_shape_checks")
def test_five_hundred_streams_at_once_each_equal_to_its_own_run(start: Start) -> None:
    """In float32. Prompts, lengths and seeds differ; some share a beginning; the cache is too small
    for all.
    """
    model = float32(gpt(context=64))
    host = start({"rows": 48, "queue": 600, "cache": 400_000}, gpt=model)
    asks = [
        GenerationRequest(
            prompt=[(number * 7 + place) % 13 for place in range(1 + number % 23)],
            max_tokens=2 + number % 7,
            sampling=SamplingParams(
                temperature=0.5 + number % 3 / 2, top_k=5 if number % 2 else None
            ),
            seed=number,
            stream=True,
        )
        for number in range(500)
    ]

    async def all_at_once() -> list[list[int]]:
        async def one(ask: GenerationRequest) -> list[int]:
            handle = host.submit("gpt", ask)
            return [each.id async for chunk in handle for each in chunk.tokens]

        return await asyncio.gather(*map(one, asks))

    said = asyncio.run(all_at_once())
    numbers = host.entries["gpt"].metrics()
    assert numbers["blocks_used"] == numbers["running"] == numbers["waiting"] == 0
    assert numbers["steps"] < sum(len(each) for each in said) / 4, "they did not run together"
    for ask, found in zip(asks, said, strict=True):
        alone = generate(
            model, [ask.prompt], length=ask.length, choice=ask.choice, seed=row_seeds(ask.seed, 1)
        )[0]
        assert found == alone


def test_two_hundred_clients_that_vanish_leave_nothing_behind(start: Start) -> None:
    host = start({"rows": 32, "queue": 300}, gpt=float32(gpt(context=256)))
    stays = host.submit(
        "gpt", GenerationRequest(prompt=[1, 2, 3], max_tokens=40, seed=1, stream=True)
    )

    async def vanish() -> None:
        async def one(number: int) -> None:
            handle = host.submit(
                "gpt", GenerationRequest(prompt=[number % 13] * 9, max_tokens=250, stream=True)
            )
            heard = 0
            try:
                async for _ in handle:
                    heard += 1
                    if heard > number % 7:
                        break
            finally:
                handle.abort()

        await asyncio.gather(*map(one, range(200)))

    asyncio.run(vanish())
    until(lambda: host.entries["gpt"].metrics()["running"] == 0)
    numbers = host.entries["gpt"].metrics()
    assert numbers["blocks_used"] == numbers["waiting"] == 0
    assert numbers["cancelled"] == 200
    assert numbers["said_tokens"] < 200 * 100
    model = host.entries["gpt"].model
    assert isinstance(model, GPT)
    assert ids_of(stays) == generate(model, [[1, 2, 3]], length=40, seed=row_seeds(1, 1))[0]


def test_past_the_queue_a_request_is_refused_at_once(start: Start) -> None:
    host = start({"rows": 2, "queue": 3}, gpt=gpt(context=256))
    engine = host.entries["gpt"].engine
    assert engine is not None
    held = threading.Event()
    blocked = host.submit_job("gpt", lambda model, tokenizer: held.wait(PATIENCE))
    until(lambda: not engine.jobs and not host.arrived)
    handles = [host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5)) for _ in range(3)]
    with pytest.raises(RequestRefused, match="3 requests wait for gpt already") as refused:
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5))
    assert refused.value.status == 429
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    held.set()
    assert blocked.wait()
    assert [len(ids_of(handle)) for handle in handles] == [5, 5, 5]
    assert len(ids_of(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5)))) == 5


def test_several_models_by_name(start: Start) -> None:
    first, second = gpt(), gpt(position="rotary")
    host = start(first=first, second=second, translator=transformer(), encoder=bert())
    handles = {
        name: host.submit(name, GenerationRequest(prompt=[1, 2, 3], max_tokens=9, seed=4))
        for name in ("first", "second")
    }
    for name, model in (("first", first), ("second", second)):
        assert (
            ids_of(handles[name]) == generate(model, [[1, 2, 3]], length=9, seed=row_seeds(4, 1))[0]
        )
    assert (
        len(ids_of(host.submit("translator", GenerationRequest(prompt=[1, 2, 3], max_tokens=4))))
        == 4
    )
    assert {name: each.family for name, each in host.entries.items()} == {
        "first": "gpt",
        "second": "gpt",
        "translator": "transformer",
        "encoder": "bert",
    }
    asked = host.submit_job(
        "encoder", lambda model, tokenizer: (type(model).__name__, tokenizer is WORDS)
    )
    assert asked.wait() == ("BERT", True)
    with pytest.raises(RequestRefused, match="a BERT says no words"):
        ids_of(host.submit("encoder", GenerationRequest(prompt=[1], max_tokens=1)))
    with pytest.raises(
        RequestRefused,
        match="there is no 'third' here; expected one of: first, second, translator, encoder",
    ):
        host.submit("third", GenerationRequest(prompt=[1], max_tokens=1))
    with pytest.raises(ValueError, match="two are called first"):
        host.add("first", lambda: (first, WORDS))


def test_a_model_loads_beside_the_others_and_may_fail_alone(start: Start) -> None:
    host = start(gpt=gpt())
    gate = threading.Event()

    def slow() -> tuple[GPT, object]:
        gate.wait(PATIENCE)
        return gpt(), WORDS

    def broken() -> tuple[GPT, object]:
        raise ValueError("weights: they are not there")

    host.add("slow", slow)  # type: ignore[arg-type]
    host.add("broken", broken)  # type: ignore[arg-type]
    assert len(ids_of(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=3)))) == 3
    assert host.entries["slow"].state == "loading"
    with pytest.raises(RequestRefused, match="slow is still loading") as refused:
        host.submit("slow", GenerationRequest(prompt=[1], max_tokens=3))
    assert refused.value.status == 503
    until(lambda: host.entries["broken"].state == "failed")
    with pytest.raises(RequestRefused, match="broken has failed"):
        host.submit("broken", GenerationRequest(prompt=[1], max_tokens=3))
    assert host.entries["broken"].error == "weights: they are not there"
    gate.set()
    until(lambda: host.entries["slow"].state == "ready")
    assert len(ids_of(host.submit("slow", GenerationRequest(prompt=[1], max_tokens=3)))) == 3


def test_work_that_fails_is_told_to_who_asked_for_it_alone(start: Start) -> None:
    host = start(gpt=gpt())

    def fails(model: object, tokenizer: object) -> None:
        raise ValueError("text: it is empty")

    asked = host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9))
    job = host.submit_job("gpt", fails)
    with pytest.raises(ValueError, match="text: it is empty"):
        job.wait()
    assert len(ids_of(asked)) == 9


def test_an_engine_that_breaks_is_told_to_all_and_the_other_models_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To those that run, those that wait, those with a job, and those that come while it breaks."""
    host = start({"rows": 1}, gpt=gpt(), other=gpt(context=256))
    engine = host.entries["gpt"].engine
    assert engine is not None
    held, handles = threading.Event(), []

    def broken(tokens: int | None = None) -> None:
        handles.append(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)))
        raise RuntimeError("the device is gone")

    blocked = host.submit_job("gpt", lambda model, tokenizer: held.wait(PATIENCE))
    handles += [host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)) for _ in range(3)]
    handles += [host.submit_job("gpt", lambda model, tokenizer: 1) for _ in range(2)]
    monkeypatch.setattr(engine.scheduler, "schedule", broken)
    held.set()
    assert blocked.wait()
    until(lambda: len(handles) == 6)
    for handle in handles:
        with pytest.raises(RuntimeError, match="gpt has failed"):
            ids_of(handle)
    assert host.entries["gpt"].state == "failed"
    assert host.entries["gpt"].error == "the device is gone"
    with pytest.raises(RequestRefused, match="gpt has failed"):
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9))
    assert len(ids_of(host.submit("other", GenerationRequest(prompt=[1], max_tokens=9)))) == 9


def test_a_loop_that_is_closed_does_not_stop_the_others(start: Start) -> None:
    host = start(gpt=gpt(context=256))

    async def leave() -> None:
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=200, stream=True))

    asyncio.run(leave())
    assert len(ids_of(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)))) == 9
