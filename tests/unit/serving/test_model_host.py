"""Model host: many clients at once, several models, a bounded queue, and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.generation import generate, row_seeds
from qkv.generation.sampling_params import SamplingParams
from qkv.models import GPT
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle, RequestRefused
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost
from support.engines import WORDS
from support.families import bert, gpt, transformer
from support.holding import HeldEngine, HeldJob
from support.waiting import PATIENCE, until

Start = Callable[..., ModelHost]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(gpt=model) returns a host that has loaded these models."""
    hosts: list[ModelHost] = []

    def start_host(options: dict[str, int] | None = None, **models: torch.nn.Module) -> ModelHost:
        host = ModelHost(**({"cache": 1 << 22} | (options or {})))
        hosts.append(host)
        for name, model in models.items():
            host.add(name, lambda model=model: (model, WORDS))
        host.start()
        until(lambda: all(entry.state != "loading" for entry in host.entries.values()))
        return host

    yield start_host
    for host in hosts:
        host.close()


def ids_of(handle: RequestHandle) -> list[int]:
    return [token.id for chunk in handle for token in chunk.tokens]


def at_rest(metrics: dict[str, float]) -> bool:
    return metrics["blocks_used"] == metrics["running"] == metrics["waiting"] == 0


def float32(model: GPT) -> GPT:
    return model.float()


@pytest.mark.usefixtures("without_shape_checks")
def test_500_streams_at_once_equal_their_solo_runs(start: Start) -> None:
    """In float32, with different prompts and seeds, shared prefixes and too small a cache."""
    model = float32(gpt(context=64))
    host = start({"rows": 48, "queue": 600, "cache": 400_000}, gpt=model)
    requests = [
        GenerationRequest(
            prompt=[(number * 7 + position) % 13 for position in range(1 + number % 23)],
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
        async def one(request: GenerationRequest) -> list[int]:
            handle = host.submit("gpt", request)
            return [token.id async for chunk in handle for token in chunk.tokens]

        return await asyncio.gather(*map(one, requests))

    generated = asyncio.run(all_at_once())
    metrics = host.entries["gpt"].metrics()
    assert metrics["blocks_used"] == metrics["running"] == metrics["waiting"] == 0
    assert metrics["steps"] < sum(map(len, generated)) / 4, "they did not run in one batch"
    for request, token_ids in zip(requests, generated, strict=True):
        (alone,) = generate(
            model,
            [request.prompt],
            length=request.max_tokens,
            sampling_params=request.sampling,
            seed=row_seeds(request.seed, 1),
        )
        assert token_ids == alone


def test_200_aborted_requests_leave_nothing_behind(start: Start) -> None:
    host = start({"rows": 32, "queue": 300}, gpt=float32(gpt(context=256)))
    stays = host.submit(
        "gpt", GenerationRequest(prompt=[1, 2, 3], max_tokens=40, seed=1, stream=True)
    )

    async def vanish() -> None:
        async def one(number: int) -> None:
            handle = host.submit(
                "gpt", GenerationRequest(prompt=[number % 13] * 9, max_tokens=250, stream=True)
            )
            received = 0
            try:
                async for _ in handle:
                    received += 1
                    if received > number % 7:
                        break
            finally:
                handle.abort()

        await asyncio.gather(*map(one, range(200)))

    asyncio.run(vanish())
    until(lambda: at_rest(host.entries["gpt"].metrics()))  # it may be in the middle of a step
    metrics = host.entries["gpt"].metrics()
    assert metrics["cancelled"] == 200
    assert metrics["said_tokens"] < 200 * 100
    model = host.entries["gpt"].model
    assert isinstance(model, GPT)
    assert ids_of(stays) == generate(model, [[1, 2, 3]], length=40, seed=row_seeds(1, 1))[0]


def test_attention_that_plans_for_each_shape_is_off_while_a_host_runs() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    host = ModelHost(cache=1 << 22)
    host.start()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    host.close()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_the_last_of_several_hosts_restores_the_attention() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    first, second = ModelHost(cache=1 << 22), ModelHost(cache=1 << 22)
    first.start()
    second.start()
    first.close()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    second.close()
    second.close()  # changes nothing
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_a_full_queue_refuses_at_once(start: Start) -> None:
    host = start({"rows": 2, "queue": 3}, gpt=gpt(context=256))
    held = HeldEngine(host)
    handles = [host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5)) for _ in range(3)]
    with pytest.raises(RequestRefused, match="server: 3 requests already wait") as refused:
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5))
    assert refused.value.status == 429
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    held.free.set()
    assert [len(ids_of(handle)) for handle in handles] == [5, 5, 5]
    assert len(ids_of(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=5)))) == 5


@pytest.mark.parametrize("in_engine", [False, True])
def test_a_queue_counts_the_requests_of_its_model_and_no_samples(
    start: Start, in_engine: bool
) -> None:
    """Whether they are on their way to the engine, or wait in it already."""
    host = start({"rows": 2, "queue": 3}, gpt=gpt(), other=gpt())
    held = HeldEngine(host)
    request = GenerationRequest(prompt=[1], max_tokens=5, samples=4)
    handles = []
    for name in ("other", "other", "gpt", "gpt", "gpt"):
        handles.append(host.submit(name, request))
        if in_engine:
            host.accept_arrived()  # its own thread is held

    entry = host.entries["gpt"]
    assert entry.waiting == (3 if in_engine else 0)
    assert entry.waiting_bound == (12 if in_engine else 0)
    with pytest.raises(RequestRefused, match="server: 3 requests already wait for gpt"):
        host.submit("gpt", request)

    handles.append(host.submit("other", request))
    held.free.set()
    assert [len(ids_of(handle)) for handle in handles] == [20] * 6


def test_a_request_on_its_way_into_the_queue_counts_once() -> None:
    """While it is added to the engine's queue, the same request is there and still arriving."""
    entry = ModelEntry("gpt")
    queued, arriving = (
        RequestHandle(GenerationRequest(prompt=[1], max_tokens=1)) for _ in range(2)
    )
    engine: Any = SimpleNamespace(waiting_requests=[queued])
    jobs: Any = SimpleNamespace(waiting=[])
    entry.engine = engine
    entry.jobs = jobs
    assert entry.waiting_with([queued, arriving]) == 2
    assert entry.waiting_with([]) == entry.waiting == 1


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
    assert {name: entry.family for name, entry in host.entries.items()} == {
        "first": "gpt",
        "second": "gpt",
        "translator": "transformer",
        "encoder": "bert",
    }
    job = host.submit_job(
        "encoder", lambda model, tokenizer: (type(model).__name__, tokenizer is WORDS)
    )
    assert job.wait() == ("BERT", True)
    with pytest.raises(RequestRefused, match="model: a BERT does not generate"):
        ids_of(host.submit("encoder", GenerationRequest(prompt=[1], max_tokens=1)))
    with pytest.raises(
        RequestRefused, match=r"model: 'third' .*: first, second, translator, encoder"
    ):
        host.submit("third", GenerationRequest(prompt=[1], max_tokens=1))
    with pytest.raises(ValueError, match=r"model: two .* first"):
        host.add("first", lambda: (first, WORDS))


def test_a_model_loads_in_the_background_and_fails_alone(start: Start) -> None:
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


def test_a_job_that_fails_affects_no_other_request(start: Start) -> None:
    host = start(gpt=gpt())

    def fails(model: object, tokenizer: object) -> None:
        raise ValueError("text: it is empty")

    handle = host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9))
    job = host.submit_job("gpt", fails)
    with pytest.raises(ValueError, match="text: it is empty"):
        job.wait()
    assert len(ids_of(handle)) == 9


def test_a_broken_engine_fails_all_its_requests_and_no_other_model(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running and waiting requests, jobs, and requests that arrive while it breaks."""
    host = start({"rows": 1}, gpt=gpt(), other=gpt(context=256))
    engine = host.entries["gpt"].engine
    assert engine is not None
    held, job, handles = HeldEngine(host), HeldJob(), []

    def broken(max_prefill_tokens: int | None = None) -> None:
        handles.append(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)))
        raise RuntimeError("the device is gone")

    running = host.submit_job("gpt", job)
    assert job.reached.wait(PATIENCE)
    handles += [host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)) for _ in range(3)]
    handles += [host.submit_job("gpt", lambda model, tokenizer: 1) for _ in range(2)]
    monkeypatch.setattr(engine.scheduler, "schedule", broken)
    held.free.set()
    until(lambda: len(handles) == 6)
    for handle in handles:
        with pytest.raises(RuntimeError, match="gpt has failed"):
            ids_of(handle)
    assert host.entries["gpt"].state == "failed"
    assert host.entries["gpt"].error == "the device is gone"
    job.free.set()
    assert running.wait() is None
    with pytest.raises(RequestRefused, match="gpt has failed"):
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9))
    assert len(ids_of(host.submit("other", GenerationRequest(prompt=[1], max_tokens=9)))) == 9


def test_a_closed_event_loop_does_not_stop_the_others(start: Start) -> None:
    host = start(gpt=gpt(context=256))

    async def leave() -> None:
        host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=200, stream=True))

    asyncio.run(leave())
    assert len(ids_of(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=9)))) == 9
