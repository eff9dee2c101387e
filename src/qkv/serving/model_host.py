"""Model host: all models of a server, and the one thread that runs their engines.

Two models that compute at the same time are slower than one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from qkv.models.model import Model
from qkv.nn.attention.kernels.sdpa import without_cudnn_attention
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    Mailbox,
    RequestHandle,
    RequestRefused,
    Update,
)
from qkv.serving.error_log import as_exception, log_unexpected, stack_of
from qkv.serving.fair_shares import FairShares
from qkv.serving.garbage import freeze_loaded
from qkv.serving.job_thread import JobQueue, JobThread, Work, use_threads
from qkv.serving.model_entry import KEPT_FINISH_TIMES, MAX_RETRY_SECONDS, ModelEntry
from qkv.serving.timings import EngineTimings
from qkv.text.tokenizer import Tokenizer

log = logging.getLogger("qkv.serving")
Load = Callable[[], tuple[Model, Tokenizer]]
IDLE_SECONDS = 0.2
"""The idle thread looks for passed deadlines this often."""
ENGINE_FAILED = "server: its engine has failed and the server is stopping; see GET /health"


class ModelHost:
    """Loads models, takes requests from any thread, and runs all engines in one thread."""

    def __init__(
        self, *, cache: int = 1 << 30, rows: int = 64, queue: int = 256, tokens: int | None = None
    ) -> None:
        """Create a host without models.

        Args:
            cache: Bytes of KV cache per model.
            rows: Sequences that are generated at once, per model.
            queue: Requests that may wait for a model.
            tokens: Prompt tokens per step at most; None chooses by device.
        """
        self.cache = cache
        self.rows = rows
        self.queue = queue
        self.tokens = tokens
        self.entries: dict[str, ModelEntry] = {}
        self.shares = FairShares()
        self.timings = EngineTimings()
        self.closed = False
        self.wake = threading.Condition()
        self.arrived: list[tuple[ModelEntry, RequestHandle]] = []
        self.entering: deque[tuple[ModelEntry, RequestHandle]] = deque()
        """Requests on their way from `arrived` to the queue of an engine."""
        self.outbox: list[tuple[RequestHandle, Update]] = []
        self.failure: str | None = None
        """Why the engine thread ended, if it did before `close`."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called in the engine thread after it has failed."""
        self.on_change: Callable[[ModelEntry], None] = lambda entry: None
        """Called in any thread after a model is ready or has failed."""
        self.settings = ExitStack()
        """PyTorch's settings while the engine runs."""
        self.stepping = threading.Lock()
        """Held during each step."""
        self.jobs = JobThread(self.finish_job, self.stepping)
        self.thread = threading.Thread(target=self.loop, name="qkv engine", daemon=True)

    # Models

    def add(self, name: str, load: Load) -> threading.Thread:
        """Load a model in a thread, which is returned; it is served as soon as it is ready."""
        if name in self.entries:
            raise ValueError(f"model: two models are called {name}; rename one, as in other={name}")

        entry = ModelEntry(name, self.queue)
        self.entries[name] = entry
        thread = threading.Thread(
            target=self.load, args=(entry, load), name=f"loading {name}", daemon=True
        )
        thread.start()
        return thread

    def load(self, entry: ModelEntry, load: Load) -> None:
        """Load a model and create its engine; called in a thread of its own."""
        try:
            model, tokenizer = load()
            model.eval()
            engine = Engine(
                model, tokenizer, self.emit, cache=self.cache, rows=self.rows, tokens=self.tokens
            )
            jobs = JobQueue(model, tokenizer)
            engine.runner.warm_up(self.rows)

            with self.wake:
                if self.failure is not None:
                    raise RuntimeError(self.failure)

                entry.jobs = jobs
                entry.engine = engine
                entry.state = "ready"

            log.info("%s is ready", entry.name)
        except BaseException as failure:
            error = as_exception(failure)
            log.warning("%s cannot be served: %s", entry.name, error)
            entry.fail(str(error) or type(error).__name__)

        self.on_change(entry)

        freeze_loaded()

    # Requests

    def submit(
        self, name: str, request: GenerationRequest, mailbox: Mailbox | None = None
    ) -> RequestHandle:
        """Queue a generation request; raises RequestRefused or ValueError if it is not accepted.

        Its updates go to the mailbox, if one is given.
        """
        handle = RequestHandle(request, mailbox)
        self.accept(name, handle)
        return handle

    def accept(self, name: str, handle: RequestHandle) -> None:
        """Check and queue the request of a handle."""
        self.ready_entry(name)[1].check(handle.request)
        self.enqueue(name, handle)

    def submit_job(self, name: str, work: Work) -> RequestHandle:
        """Queue a function of the model and its tokenizer, which runs beside the engine."""
        handle = RequestHandle(work)
        self.enqueue(name, handle)
        return handle

    def enqueue(self, name: str, handle: RequestHandle) -> None:
        """Queue a request or a job; raises RequestRefused if the queue is full."""
        entry, engine = self.ready_entry(name)
        with self.wake:
            if self.queue_is_full(entry):
                engine.counts["refused"] += 1
                raise RequestRefused(
                    429,
                    f"server: {self.queue} requests already wait for {name}",
                    entry.retry_after(),
                )

            if self.failure is not None:  # in the meantime
                raise RequestRefused(503, ENGINE_FAILED)

            if isinstance(handle.request, GenerationRequest):
                self.timings.accept(name, handle)
                self.arrived.append((entry, handle))
                self.wake.notify()
            else:
                assert entry.jobs is not None
                self.jobs.add(entry.jobs, handle, handle.request)

    def queue_is_full(self, entry: ModelEntry) -> bool:
        """Whether the queue of a model is full."""
        # An upper bound first, with requests of other models and all samples: counting takes long.
        if len(self.arrived) + len(self.entering) + entry.waiting_bound < self.queue:
            return False

        arriving = []
        for other, request in [*self.arrived, *self.entering.copy()]:
            if other is entry:
                arriving.append(request)

        return entry.waiting_with(arriving) >= self.queue

    def entry(self, name: str) -> ModelEntry:
        """A model by its name; raises RequestRefused if there is none."""
        if name not in self.entries:
            names = ", ".join(self.entries) or "none"
            raise RequestRefused(
                404, f"model: {name[:60]!r} does not exist; expected one of: {names}"
            )

        return self.entries[name]

    def ready_entry(self, name: str) -> tuple[ModelEntry, Engine]:
        """A model that accepts requests; raises RequestRefused otherwise."""
        entry = self.entry(name)
        if self.closed:
            raise RequestRefused(
                503, "server: it is stopping and takes no new requests", MAX_RETRY_SECONDS
            )
        if self.failure is not None:
            raise RequestRefused(503, ENGINE_FAILED)
        if entry.state == "failed":
            raise RequestRefused(503, f"model: {name} has failed; see GET /health")

        engine = entry.engine
        if engine is None:
            raise RequestRefused(503, f"model: {name} is still loading; try again in a moment", 2)

        return entry, engine

    # The engine thread

    def start(self) -> None:
        """Start the engine thread, and the one for jobs."""
        self.settings.enter_context(without_cudnn_attention())
        self.jobs.thread.start()
        self.jobs.ready.wait()
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs, or has not been started yet."""
        if self.failure is not None:
            return False

        return self.closed or self.thread.ident is None or self.thread.is_alive()

    def loop(self) -> None:
        use_threads(self.jobs.threads)  # after the thread of jobs, which takes fewer
        try:
            while not self.closed:
                self.step_or_wait()
        except BaseException as error:  # otherwise no request would ever be answered again
            self.fail(error)

    def step_or_wait(self) -> None:
        try:
            with self.stepping:
                worked = self.run_step()
        except Exception as error:  # other requests must not wait for ever
            log_unexpected(error)
            worked = False

        if not worked:
            with self.wake:
                if not self.arrived and not self.closed:
                    self.wake.wait(timeout=IDLE_SECONDS)

    def fail(self, error: BaseException) -> None:
        """End the engine thread: all open requests get an error, and the server stops."""
        log.critical("the engine's thread ended: %s at %s", type(error).__name__, stack_of(error))
        with self.wake:
            self.failure = f"the engine's thread ended ({type(error).__name__})"
            handles = [handle for _, handle in [*self.arrived, *self.entering]]
            self.arrived = []
            self.entering = deque()
            for entry in self.entries.values():
                handles += entry.fail(self.failure)

        for handle in {handle.id: handle for handle in handles}.values():
            self.emit(handle, RequestRefused(503, ENGINE_FAILED))

        try:
            self.deliver()
        finally:
            self.on_failure()

    def run_step(self) -> bool:
        """Run a step of the busy model with the smallest share of time; False if none is busy."""
        self.accept_arrived()
        busy = self.busy()
        for entry in busy.values():
            self.catch_up(entry, others=len(busy) > 1)

        busy = self.busy()

        return any(self.step(busy[name], short=len(busy) > 1) for name in self.shares.order(busy))

    def busy(self) -> dict[str, ModelEntry]:
        """The models with work."""
        busy = {}
        for name, entry in list(self.entries.items()):
            if entry.engine is not None and entry.engine.busy:
                busy[name] = entry

        return busy

    def accept_arrived(self) -> None:
        """Move requests that have arrived to the queues of their engines."""
        with self.wake:
            self.entering = deque(self.arrived)
            self.arrived = []

        while self.entering:
            entry, handle = self.entering[0]
            try:
                if entry.engine is None:
                    raise RuntimeError(f"model: {entry.name} has failed")

                entry.engine.add_request(handle)
            except BaseException as error:
                self.emit(handle, as_exception(error))

            self.entering.popleft()  # only now: until here it counts as arriving

        self.deliver()

    def catch_up(self, entry: ModelEntry, *, others: bool) -> None:
        """End late and aborted requests of a model, even while others use the thread."""
        self.attempt(entry, lambda engine: engine.catch_up(others=others))

    def step(self, entry: ModelEntry, *, short: bool = False) -> bool:
        def work(engine: Engine) -> bool:
            self.timings.begin_step()
            worked = engine.step(short=short)
            self.timings.end_step(entry.name, engine.scheduler.running)
            return worked

        return self.attempt(entry, work)

    def attempt(self, entry: ModelEntry, work: Callable[[Engine], bool]) -> bool:
        """Run work of one engine and count its time; its errors end this model only."""
        engine = entry.engine
        if engine is None:
            return False

        finished = engine.counts["finished"]
        began = time.monotonic()

        try:
            worked = work(engine)
        except BaseException as failure:  # a fault of the engine, not of one request
            error = as_exception(failure)
            log_unexpected(error)
            handles = entry.fail(str(error) or type(error).__name__)
            self.on_change(entry)
            for handle in handles:
                self.emit(handle, RuntimeError(f"model: {entry.name} has failed"))

            worked = True

        self.timings.forget_aborted()
        ended = time.monotonic()
        self.shares.spend(entry.name, ended - began)
        if engine.counts["finished"] > finished:
            entry.finish_times = [*entry.finish_times[1 - KEPT_FINISH_TIMES :], ended]

        self.deliver()

        return worked

    # Output

    def emit(self, handle: RequestHandle, update: Update) -> None:
        """Put an update into the outbox."""
        self.timings.emit(handle, update)
        self.outbox.append((handle, update))

    def deliver(self) -> None:
        """Send all updates of a step."""
        outbox = self.outbox
        self.outbox = []
        deliver_all(outbox)

    def finish_job(self, handle: RequestHandle, update: Update) -> None:
        """Send the result of a job; called in the thread of jobs."""
        deliver_all([(handle, update)])

    def close(self, seconds: float = 30) -> None:
        """Stop the engine thread, waiting at most this long for its current step."""
        with self.wake:
            self.closed = True
            self.wake.notify()

        self.jobs.close()
        if self.thread.is_alive():
            self.thread.join(timeout=seconds)

        self.settings.close()


def deliver_all(updates: Sequence[tuple[RequestHandle, Update]]) -> None:
    """Send updates to their readers, with one call for each: waking an event loop is expensive."""
    by_reader: dict[Any, list[tuple[RequestHandle, Update]]] = {}
    for handle, update in updates:
        by_reader.setdefault(handle.reader, []).append((handle, update))

    for reader, part in by_reader.items():
        if reader is None:
            put_all(part)
        elif isinstance(reader, asyncio.AbstractEventLoop):
            with suppress(RuntimeError):  # a closed event loop has no waiting clients
                reader.call_soon_threadsafe(put_all, part)
        else:
            reader.deliver(part)


def put_all(updates: list[tuple[RequestHandle, Update]]) -> None:
    for handle, update in updates:
        handle.put(update)
