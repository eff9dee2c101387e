"""Jobs run beside the engine, on a copy of the model whose hooks the engine never sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from qkv.generation import generate, row_seeds
from qkv.nn.hooks import add_hook, has_hooks
from qkv.serving.engine.generation_request import GenerationRequest
from qkv.serving.job_thread import copy_with_shared_tensors
from qkv.serving.model_host import ModelHost
from support.engines import WORDS
from support.families import bert, gpt, rnn_lm, transformer
from support.holding import HeldJob
from support.small_server import hosting
from support.waiting import until

STEPS = 30


@pytest.fixture
def host() -> Iterator[ModelHost]:
    host = hosting({"gpt": (gpt(context=4096, position="rotary"), WORDS)}, cache=16 << 20)
    yield host
    host.close()


def engine_of(host: ModelHost) -> Any:
    engine = host.entries["gpt"].engine
    assert engine is not None
    return engine


def test_streams_go_on_while_a_job_runs(host: ModelHost) -> None:
    """The job ends after some steps of the engine: if they waited for it, it never would."""
    engine = engine_of(host)
    handle = host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=4000, stream=True))
    chunks = iter(handle)
    next(chunks)

    def waits(model: Any, tokenizer: Any) -> int:
        before = engine.counts["steps"]
        until(lambda: engine.counts["steps"] >= before + STEPS)
        return int(engine.counts["steps"] - before)

    job = host.submit_job("gpt", waits)
    for _ in range(STEPS):
        assert next(chunks).tokens
    assert job.wait() >= STEPS
    handle.abort()


def test_hooks_of_a_job_are_not_called_by_the_engine(host: ModelHost) -> None:
    engine = engine_of(host)
    request = GenerationRequest(prompt=[1, 2, 3], max_tokens=20, seed=4)
    alone = generate(engine.model, [[1, 2, 3]], length=20, seed=row_seeds(4, 1))[0]
    ids = torch.tensor([[1, 2, 3]])
    calls: list[str] = []

    def off(value: torch.Tensor, name: str) -> torch.Tensor:
        calls.append(name)
        return 0 * value

    def look(model: Any, tokenizer: Any) -> tuple[bool, bool, list[int]]:
        plain = model(ids)
        with add_hook(model, "*heads", off):
            edited = model(ids)
            seen = len(calls)
            beside = [token.id for chunk in host.submit("gpt", request) for token in chunk.tokens]
            assert has_hooks(model)
            assert not has_hooks(engine.model)
            assert len(calls) == seen
        return torch.equal(plain, engine.model(ids)), torch.equal(plain, edited), beside

    assert host.submit_job("gpt", look).wait() == (True, False, alone)


@pytest.mark.parametrize("model", [gpt(), bert(), transformer(), rnn_lm()], ids=lambda m: type(m))
def test_a_copy_shares_the_weights_and_no_module(model: Any) -> None:
    copied = copy_with_shared_tensors(model)
    assert copied is not None
    assert set(copied.modules()).isdisjoint(model.modules())
    pairs = zip(copied.state_dict().items(), model.state_dict().items(), strict=True)
    for (name, value), (other_name, other) in pairs:
        assert name == other_name
        assert value.data_ptr() == other.data_ptr()


def test_the_engine_waits_for_jobs_of_a_model_that_cannot_be_copied() -> None:
    model = gpt(context=4096, position="rotary")
    model.own_function = lambda x: x  # type: ignore[assignment]
    assert copy_with_shared_tensors(model) is None
    host = hosting({"gpt": (model, WORDS)}, cache=16 << 20)
    engine = engine_of(host)
    handle = host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=4000, stream=True))
    chunks = iter(handle)
    next(chunks)

    def counts(job_model: Any, tokenizer: Any) -> tuple[bool, bool]:
        before = engine.counts["steps"]
        for _ in range(20):
            model(torch.tensor([[1, 2, 3]]))
        return job_model is model, engine.counts["steps"] == before

    assert host.submit_job("gpt", counts).wait() == (True, True)
    assert next(chunks).tokens
    handle.abort()
    host.close()


def test_jobs_run_one_at_a_time_and_aborted_ones_never(host: ModelHost) -> None:
    first, order = HeldJob(), []
    running = host.submit_job("gpt", first)
    assert first.reached.wait(60)
    aborted = host.submit_job("gpt", lambda model, tokenizer: order.append("aborted"))
    aborted.abort()
    jobs = [
        host.submit_job("gpt", lambda model, tokenizer, number=number: order.append(number))
        for number in range(3)
    ]
    assert host.entries["gpt"].metrics()["waiting"] == 4
    assert not order
    first.free.set()
    running.wait()
    for job in jobs:
        job.wait()
    assert order == [0, 1, 2]


def test_the_engine_has_all_threads_of_pytorch_and_jobs_have_half() -> None:
    """A thread that did not ask for its number before it was set would take that of the jobs."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    host = hosting({"gpt": (gpt(), WORDS)}, cache=16 << 20)
    counts = []
    engine = engine_of(host)
    run = engine.run

    def counted(*args: Any) -> Any:
        counts.append(torch.get_num_threads())
        return run(*args)

    engine.run = counted
    try:
        assert list(host.submit("gpt", GenerationRequest(prompt=[1], max_tokens=3)))
        assert host.submit_job("gpt", lambda *_: torch.get_num_threads()).wait() == 2
        assert set(counts) == {4}
    finally:
        host.close()
        torch.set_num_threads(before)
