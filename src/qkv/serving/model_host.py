"""All models of a server, and the one thread in which they run: two that compute at once are slower
than one by one.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch

from qkv.models.registry import FAMILIES, Model
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    JobResult,
    OutputChunk,
    RequestHandle,
    RequestRefused,
)
from qkv.serving.engine.runner import PagedRunner
from qkv.serving.fair_shares import FairShares
from qkv.serving.http.error_log import log_unforeseen, ordinary, where
from qkv.serving.preparation import PreparationPool
from qkv.text.tokenizer import Tokenizer

log = logging.getLogger("qkv.serving")
Load = Callable[[], tuple[Model, Tokenizer]]
Work = Callable[[Model, Tokenizer], Any]
LONGEST_WAIT = 60  # seconds that anyone is told to come back after
ENDED = "server: its engine has failed, and it ends; GET /health says why"


class ModelEntry:
    """One model by its name."""

    def __init__(self, name: str, queue: int = 256) -> None:
        self.name = name
        self.preparing = PreparationPool(name, queue=queue)
        """Threads for its chat template and its tokenizer."""
        self.state: Literal["loading", "ready", "failed"] = "loading"
        self.error: str | None = None
        self.engine: Engine | None = None
        self.finished: list[float] = []
        """When the last few requests ended."""

    @property
    def model(self) -> Model | None:
        return None if self.engine is None else self.engine.model

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.engine is None else self.engine.tokenizer

    @property
    def family(self) -> str | None:
        return next(
            (name for name, (_, kind) in FAMILIES.items() if type(self.model) is kind), None
        )

    def numbers(self) -> dict[str, float]:
        return {} if self.engine is None else self.engine.numbers()

    def retry_after(self) -> int:
        """Seconds until one of those that wait has likely begun."""
        if len(self.finished) < 2:
            return 1

        between = (self.finished[-1] - self.finished[0]) / (len(self.finished) - 1)
        waiting = 1 if self.engine is None else max(1, self.engine.waiting)

        return min(LONGEST_WAIT, max(1, math.ceil(between * waiting / 2)))


class ModelHost:
    def __init__(
        self, *, cache: int = 1 << 30, rows: int = 64, queue: int = 256, tokens: int | None = None
    ) -> None:
        """For each model `cache` bytes of what its texts remember, `rows` texts at once, and a
        `queue` of requests.
        """
        self.how: dict[str, Any] = {"cache": cache, "rows": rows, "tokens": tokens}
        self.queue = queue
        self.served: dict[str, ModelEntry] = {}
        self.closed = False
        self.wake = threading.Condition()
        self.arrived: list[tuple[ModelEntry, RequestHandle]] = []
        self.entering: deque[tuple[ModelEntry, RequestHandle]] = deque()
        """Who has arrived, and is not in the engine's queue yet."""
        self.told: list[tuple[RequestHandle, Any]] = []
        self.shares = FairShares()
        self.failure: str | None = None
        """Why the engine's thread ended, if it did before `close`."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the engine's thread has failed, in that thread."""
        self.thread = threading.Thread(target=self.loop, name="qkv engine", daemon=True)

    # Models

    def add(self, name: str, load: Load) -> None:
        """Load it beside everything else; it is served when it is there."""
        if name in self.served:
            raise ValueError(
                f"model: two are called {name}; give one another name, as other={name}"
            )

        served = self.served[name] = ModelEntry(name, self.queue)
        threading.Thread(
            target=self.load, args=(served, load), name=f"loading {name}", daemon=True
        ).start()

    def load(self, served: ModelEntry, load: Load) -> None:
        try:
            model, tokenizer = load()
            model.eval()
            engine = Engine(model, tokenizer, self.tell, **self.how)
            if isinstance(engine.runner, PagedRunner) and engine.runner.replays is not None:
                with torch.inference_mode():
                    engine.runner.replays.warm_up(self.how["rows"])

            with self.wake:
                if self.failure is not None:
                    raise RuntimeError(self.failure)

                served.engine, served.state = engine, "ready"
        except BaseException as failure:
            error = ordinary(failure)
            log.warning("%s cannot be served: %s", served.name, error)
            served.state, served.error = "failed", str(error) or type(error).__name__

        gc.collect()
        # what is there now stays: to look through it again and again would hold up the steps
        gc.freeze()

    # Requests

    def ask(self, name: str, ask: GenerationRequest) -> RequestHandle:
        """A request for words; Refused, or a ValueError, when it cannot be taken."""
        return self.take(name, ask)

    def job(self, name: str, work: Work) -> RequestHandle:
        """Some work of a model's own, done between two steps."""
        return self.take(name, work)

    def take(self, name: str, wanted: GenerationRequest | Work) -> RequestHandle:
        served = self.served.get(name)
        if served is None:
            there = ", ".join(self.served) or "none"
            raise RequestRefused(404, f"model: there is no {name!r} here; expected one of: {there}")

        if self.closed:
            raise RequestRefused(
                503, "server: it is about to leave and takes nothing new", LONGEST_WAIT
            )
        if self.failure is not None:
            raise RequestRefused(503, ENDED)
        if served.state == "failed":
            raise RequestRefused(503, f"model: {name} has failed; /health says why")

        engine = served.engine
        if engine is None:
            raise RequestRefused(503, f"model: {name} is still loading; ask again in a moment", 2)

        ticket = RequestHandle(wanted)
        if isinstance(wanted, GenerationRequest):
            engine.check(wanted)

        with self.wake:
            coming = sum(one is served for one, _ in [*self.arrived, *self.entering.copy()])
            if engine.waiting + coming >= self.queue:
                engine.counts["refused"] += 1
                raise RequestRefused(
                    429,
                    f"server: {self.queue} requests wait for {name} already",
                    served.retry_after(),
                )

            if self.failure is not None:  # meanwhile
                raise RequestRefused(503, ENDED)

            self.arrived.append((served, ticket))
            self.wake.notify()

        return ticket

    # The thread

    def start(self) -> None:
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are worked on: the engine's thread was not started yet, or it runs."""
        return self.failure is None and (
            self.closed or self.thread.ident is None or self.thread.is_alive()
        )

    def loop(self) -> None:
        try:
            while not self.closed:
                self.turn_or_wait()
        except BaseException as error:  # nobody would answer any more, and nobody would know
            self.fail(error)

    def turn_or_wait(self) -> None:
        try:
            worked = self.turn()
        except Exception as error:  # whatever it was, the others must not wait for ever
            log_unforeseen(error)
            worked = False

        if not worked:
            with self.wake:
                if not self.arrived and not self.closed:
                    self.wake.wait(timeout=0.2)  # a deadline may pass while nobody asks

    def fail(self, error: BaseException) -> None:
        """The engine's thread ends: everyone who waits is told so, and the server ends."""
        log.critical("the engine's thread ended: %s at %s", type(error).__name__, where(error))
        with self.wake:
            self.failure = f"the engine's thread ended ({type(error).__name__})"
            tickets = [ticket for _, ticket in [*self.arrived, *self.entering]]
            self.arrived, self.entering = [], deque()
            for served in self.served.values():
                tickets += [] if served.engine is None else served.engine.tickets()
                served.state, served.error, served.engine = "failed", self.failure, None

        for ticket in {ticket.number: ticket for ticket in tickets}.values():
            self.tell(ticket, RequestRefused(503, ENDED))

        try:
            self.deliver()
        finally:
            self.on_failure()

    def turn(self) -> bool:
        """A step of the model that used least of the thread's time, among those with work; whether
        there was any.
        """
        self.let_in()
        busy = self.busy()

        for served in busy.values():
            self.catch_up(served, others=len(busy) > 1)

        busy = self.busy()

        return any(self.step(busy[name], short=len(busy) > 1) for name in self.shares.order(busy))

    def busy(self) -> dict[str, ModelEntry]:
        """The models with work."""
        return {
            name: each
            for name, each in list(self.served.items())
            if each.engine is not None and each.engine.busy
        }

    def let_in(self) -> None:
        with self.wake:
            self.entering, self.arrived = deque(self.arrived), []

        while self.entering:
            served, ticket = self.entering[0]
            try:
                if served.engine is None:
                    raise RuntimeError(f"model: {served.name} has failed")

                if isinstance(ticket.ask, GenerationRequest):
                    served.engine.take(ticket)
                else:
                    served.engine.jobs.append((ticket, ticket.ask))
            except BaseException as error:
                self.tell(ticket, ordinary(error))

            self.entering.popleft()  # until here it counts as one that comes

        self.deliver()

    def catch_up(self, served: ModelEntry, *, others: bool) -> None:
        """Requests past their deadline or without a client end now, even while other models keep
        the thread.
        """
        self.attempt(served, lambda engine: engine.catch_up(others=others))

    def step(self, served: ModelEntry, *, short: bool = False) -> bool:
        return self.attempt(served, lambda engine: engine.step(short=short))

    def attempt(self, served: ModelEntry, work: Callable[[Engine], bool]) -> bool:
        """Work of one model's engine, in its share of the time; a fault of the engine ends this
        model alone.
        """
        engine = served.engine
        if engine is None:
            return False

        before, begin = engine.counts["finished"], time.monotonic()

        try:
            worked = work(engine)
        except (
            BaseException
        ) as failure:  # nothing that one request did, but a fault of the engine's
            error = ordinary(failure)
            log_unforeseen(error)
            served.state, served.error, served.engine = (
                "failed",
                str(error) or type(error).__name__,
                None,
            )
            for ticket in engine.tickets():
                self.tell(ticket, RuntimeError(f"model: {served.name} has failed"))

            worked = True

        end = time.monotonic()
        self.shares.spend(served.name, end - begin)
        if engine.counts["finished"] > before:
            served.finished = [*served.finished[-15:], end]

        self.deliver()

        return worked

    def tell(self, ticket: RequestHandle, news: OutputChunk | JobResult | Exception) -> None:
        self.told.append((ticket, news))

    def deliver(self) -> None:
        """All that was said in a step goes to the event loops at once: to wake one costs more than
        to tell it much.
        """
        told, self.told = self.told, []
        by_loop: dict[Any, list[tuple[RequestHandle, Any]]] = {}

        for ticket, news in told:
            by_loop.setdefault(ticket.loop, []).append((ticket, news))

        for loop, some in by_loop.items():
            if loop is None:
                hand_out(some)
            else:
                with suppress(RuntimeError):  # a loop that is closed has nobody who waits
                    loop.call_soon_threadsafe(hand_out, some)

    def close(self, seconds: float = 30) -> None:
        """Leave, whatever is under way; who waits for a step's end waits so long at most."""
        with self.wake:
            self.closed = True
            self.wake.notify()

        if self.thread.is_alive():
            self.thread.join(timeout=seconds)


def hand_out(told: list[tuple[RequestHandle, Any]]) -> None:
    for ticket, news in told:
        ticket.hear(news)
