"""Models share the engine's thread by time, which the tests measure with a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qkv.generation import generate, row_seeds
from qkv.serving import model_host as hosts
from qkv.serving.engine import engine as engines
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle
from qkv.serving.engine.prefill_budget import PrefillBudget
from qkv.serving.fair_shares import FairShares
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost
from support.engines import WORDS, Steps
from support.families import gpt


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Costly:
    """An engine whose steps take a fixed number of seconds."""

    def __init__(self, clock: Clock, seconds: float, work: int) -> None:
        self.clock, self.seconds, self.left = clock, seconds, work
        self.counts = {"finished": 0}
        self.scheduler = SimpleNamespace(running=[])
        self.done = 0
        self.spent = 0.0
        self.short: list[bool] = []

    @property
    def busy(self) -> bool:
        return self.left > 0

    def catch_up(self, *, others: bool) -> bool:
        """Nothing to do: no deadlines and no aborts."""
        return False

    def step(self, *, short: bool = False) -> bool:
        self.short.append(short)
        self.clock.now += self.seconds
        self.spent += self.seconds
        self.done += 1
        self.left -= 1
        return True

    def sequences(self) -> list[Any]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hosts, "time", clock)
    return clock


def hosted(**engines: Costly) -> ModelHost:
    """A host without a thread: the test runs every step itself."""
    host = ModelHost()
    for name, engine in engines.items():
        entry = host.entries[name] = ModelEntry(name)
        entry.state = "ready"
        entry.engine = engine  # type: ignore[assignment]
    return host


def test_a_quick_model_beside_a_slow_one_takes_twice_as_long_as_alone(clock: Clock) -> None:
    """Alternating steps would make its 40 steps of 1 ms take 41 times as long."""
    quick, slow = Costly(clock, 0.001, 40), Costly(clock, 0.040, 10**6)
    host = hosted(slow=slow, quick=quick)
    while quick.busy:
        assert host.run_step()
    # As much again for the slow model, and a step that had started
    assert clock.now <= 2 * 0.040 + 0.040
    assert slow.done in (1, 2)


def test_each_of_several_models_gets_the_same_time(clock: Clock) -> None:
    costs = {"a": 0.001, "b": 0.007, "c": 0.030}
    engines = {name: Costly(clock, seconds, 10**6) for name, seconds in costs.items()}
    host = hosted(**engines)
    while clock.now < 10:
        host.run_step()
    for engine in engines.values():
        assert engine.spent == pytest.approx(clock.now / 3, abs=2 * 0.030)
    assert all(all(engine.short) for engine in engines.values())


def test_idle_time_is_not_saved_up(clock: Clock) -> None:
    busy, idle = Costly(clock, 0.010, 1000), Costly(clock, 0.010, 0)
    host = hosted(busy=busy, idle=idle)
    while clock.now < 5:
        host.run_step()
    idle.left = 1000
    begin, before = clock.now, busy.done
    while clock.now < begin + 1:
        host.run_step()
    assert abs((busy.done - before) - idle.done) <= 1
    assert not any(busy.short[:before])  # without other models steps may be long
    assert any(busy.short[before:])


def test_after_a_pause_all_models_are_equal(clock: Clock) -> None:
    first, second = Costly(clock, 0.010, 300), Costly(clock, 0.010, 0)
    host = hosted(first=first, second=second)
    while host.run_step():
        pass
    first.left = second.left = 100
    before = first.done
    for _ in range(50):
        host.run_step()
    assert abs((first.done - before) - second.done) <= 1


def test_a_blocked_model_lets_others_run(clock: Clock) -> None:
    blocked, other = Costly(clock, 0.0, 10**6), Costly(clock, 0.010, 5)
    blocked.step = lambda short=False: False  # type: ignore[method-assign, misc]
    host = hosted(blocked=blocked, other=other)
    while other.busy:
        assert host.run_step()
    assert not host.run_step()


def test_a_model_that_is_often_idle_gains_nothing() -> None:
    """A model that is idle after each of its steps gets no more than its share."""
    shares = FairShares()
    time: dict[str, float] = {"steady": 0.0, "fickle": 0.0}
    fickle = True
    for _ in range(3000):
        name = shares.order(["steady", "fickle"] if fickle else ["steady"])[0]
        fickle = name != "fickle"
        shares.spend(name, 0.010)
        time[name] += 0.010
    assert time["fickle"] == pytest.approx(15, abs=0.05)


# Deadlines and aborts


class Beside:
    """A real engine "a" with steps of a second, and "b", which then has the thread."""

    def __init__(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, ahead: bool = False, **fields: Any
    ) -> None:
        monkeypatch.setattr(engines, "time", clock)
        clock.now = 1.0
        self.clock, self.b = clock, Costly(clock, 0.001, 0)
        self.host = hosted(b=self.b)
        self.a = Engine(gpt(context=64), WORDS, self.host.emit, cache=1 << 22)
        self.a.runs_ahead = ahead
        entry = self.host.entries["a"] = ModelEntry("a")
        entry.state = "ready"
        entry.engine = self.a
        real = self.a.run

        def costly(batch: Any) -> Any:
            clock.now += 1.0
            return real(batch)

        monkeypatch.setattr(self.a, "run", costly)
        self.handle = RequestHandle(GenerationRequest(prompt=[1, 2, 3], max_tokens=50, **fields))
        self.a.add_request(self.handle)
        for _ in range(3):
            assert self.host.run_step()
        self.b.left = 10**6

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run steps of "b" until the condition holds; "a" runs none."""
        steps = self.a.counts["steps"]
        for _ in range(900):
            self.host.run_step()
            if condition():
                break
        assert condition()
        assert (self.a.counts["steps"], steps) == (3, 3)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_deadline_ends_a_request_while_another_model_runs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """The output includes the token of a step that ran ahead."""
    beside = Beside(clock, monkeypatch, ahead=ahead, deadline=4.5)
    assert beside.a.scheduler.blocks.used
    beside.run_until(lambda: beside.a.counts["finished"] == 1)
    assert clock.now < 4.51
    chunks = list(beside.handle)
    assert chunks[-1].reason == "deadline"
    assert sum(len(chunk.tokens) for chunk in chunks) == 3
    assert beside.a.scheduler.blocks.used == 0
    assert not beside.a.busy


@pytest.mark.parametrize("ahead", [False, True])
def test_an_aborted_request_frees_its_blocks_while_another_model_runs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    beside = Beside(clock, monkeypatch, ahead=ahead)
    beside.handle.abort()
    beside.run_until(lambda: beside.a.scheduler.blocks.used == 0)
    assert beside.a.counts["cancelled"] == 1
    assert not beside.a.busy


def test_tokens_of_a_step_that_ran_ahead_do_not_wait_for_another_model(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(clock, monkeypatch, ahead=True, stream=True)
    assert beside.a.pending
    beside.run_until(lambda: beside.a.counts["said_tokens"] == 3)


def test_a_fault_at_a_deadline_affects_no_other_model(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(clock, monkeypatch)

    def broken() -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(beside.a, "end_aborted_and_late", broken)
    done = beside.b.done
    assert beside.host.run_step()
    assert beside.b.done == done + 1
    assert beside.host.entries["a"].state == "failed"
    with pytest.raises(RuntimeError, match="model: a has failed"):
        list(beside.handle)


# Long prompts


def test_a_short_step_prefills_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks take 50 ms by the time of the last step, and the tokens are the same."""
    prompt = [index % 13 for index in range(200)]
    clock, model = Clock(), gpt(context=256)
    monkeypatch.setattr(engines, "time", clock)
    steps = Steps(model, cache=1 << 22)
    real, sizes = steps.engine.run, []

    def costly(batch: Any) -> Any:
        sizes.append(batch.prefill_tokens)
        clock.now += 0.0005 * sizes[-1]
        return real(batch)

    monkeypatch.setattr(steps.engine, "run", costly)
    chunked = steps.request(prompt, max_tokens=4, seed=1)
    while steps.engine.step(short=True):
        pass
    assert sizes == [64, 100, 36, 0, 0, 0]
    assert steps.ids(chunked) == generate(model, [prompt], length=4, seed=row_seeds(1, 1))


@pytest.mark.parametrize(("seconds", "chunk"), [(0.0, 64), (0.5, 64), (0.025, 200), (1e-9, 512)])
def test_a_chunk_has_bounds(seconds: float, chunk: int) -> None:
    budget = PrefillBudget(512)
    budget.measure(100, seconds)
    assert budget.tokens == chunk


def settled_chunk(fixed: float, per_token: float) -> int:
    """The chunk after some steps, alternately without and with prompt tokens."""
    budget = PrefillBudget(512)
    for _ in range(5):
        budget.measure(0, fixed)
        budget.measure(budget.tokens, fixed + per_token * budget.tokens)
    return budget.tokens


def test_the_fixed_cost_of_a_step_does_not_shrink_the_chunk() -> None:
    """1 ms per token is 50 tokens in 50 ms, whatever the fixed cost; the minimum is 64."""
    assert settled_chunk(0.3, 0.001) == 64
    assert settled_chunk(0.3, 0.0005) in (99, 100)
    assert settled_chunk(0.0, 0.0005) in (99, 100)


def test_a_step_no_longer_than_the_fixed_cost_has_a_bounded_effect() -> None:
    """Noise: a step with prompt tokens can be faster than one without."""
    budget = PrefillBudget(512)
    budget.measure(0, 0.3)
    budget.measure(64, 0.25)
    assert budget.tokens == 128


class Arriving:
    """The event of a step that a device runs after the one before."""

    def __init__(self, clock: Clock, before: float, seconds: float) -> None:
        self.clock, self.ready = clock, max(clock.now, before) + seconds

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.ready)


def test_a_short_step_is_measured_to_its_end_and_does_not_run_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of a step that ran ahead includes the step before, so it is not measured."""
    clock = Clock()
    monkeypatch.setattr(engines, "time", clock)
    steps = Steps(gpt(context=512), cache=1 << 22)
    engine, real = steps.engine, steps.engine.run
    engine.runs_ahead = True
    arriving: list[Arriving] = []

    def launched(batch: Any) -> Any:
        read = batch.prefill_tokens
        arriving.append(
            Arriving(clock, arriving[-1].ready if arriving else 0.0, 0.0005 * read or 0.3)
        )
        return real(batch)._replace(arrived=arriving[-1])

    monkeypatch.setattr(engine, "run", launched)
    steps.request([1, 2, 3], max_tokens=20)
    steps.step(3)
    assert engine.pending
    assert (engine.prefill_budget.tokens, engine.prefill_budget.fixed_cost) == (64, 0.0)
    before = clock.now
    engine.step(short=True)  # waits for the step before, and for its own end
    assert not engine.pending
    assert clock.now == pytest.approx(before + 0.6)
    assert engine.prefill_budget.fixed_cost == pytest.approx(0.3)
    steps.request([index % 13 for index in range(300)], max_tokens=2)
    engine.step(short=True)
    assert not engine.pending
    assert engine.prefill_budget.tokens > 64
