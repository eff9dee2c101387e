"""Preparation of requests, i.e. chat templates and tokenization, in a few threads per model.

A template is a program from elsewhere, and tokenizing a long text takes a while. Both therefore
run beside the event loop, at most until the request's deadline. Every model has its own threads:
if those of one are stuck, the others are not affected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from qkv.serving.engine.generation_request import TIMED_OUT, RequestRefused
from qkv.serving.error_log import as_exception

T = TypeVar("T")
WORKERS = 4
"""Threads per model."""
RETRY_SECONDS = 5.0
"""Retry-After when all threads are stuck or the queue is full."""


class PreparationJob:
    """Work for one request, which cancels its future when it does not wait any more."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def run(self) -> tuple[Any, Exception | None]:
        """Run the work in a thread of the pool; returns its value or its error."""
        try:
            return self.work(), None
        except BaseException as failure:
            return None, as_exception(failure)

    def hand_over(self, value: Any, error: Exception | None) -> None:
        """Send the result to the event loop of the request."""
        with suppress(InvalidStateError):  # it was cancelled
            if error is None:
                self.future.set_result(value)
            else:
                self.future.set_exception(error)


class PreparationPool:
    """A bounded pool of daemon threads for one model, with a bounded queue."""

    def __init__(self, name: str, *, workers: int = WORKERS, queue: int = 256) -> None:
        self.name = name
        self.workers = workers
        self.queue = queue
        self.lock = threading.Lock()
        self.running: set[PreparationJob] = set()
        self.waiting: deque[PreparationJob] = deque()

    async def run(self, work: Callable[[], T], deadline: float) -> T:
        """Return what the work returns; RequestRefused if the pool is full or the deadline passes.

        The deadline is a time of time.monotonic().
        """
        job = PreparationJob(work)
        self.add(job)

        try:
            async with asyncio.timeout(deadline - time.monotonic()) as limit:
                result: T = await asyncio.wrap_future(job.future)
                return result
        except TimeoutError:
            if limit.expired():
                raise RequestRefused(408, TIMED_OUT) from None

            raise
        finally:
            self.abandon(job)

    def add(self, job: PreparationJob) -> None:
        """Run a job in a new thread, or queue it if all threads are busy."""
        with self.lock:
            if len(self.running) >= self.workers:
                self.check_queue()
                self.waiting.append(job)
                return

            self.running.add(job)

        try:
            threading.Thread(
                target=self.work, args=(job,), name=f"preparing {self.name}", daemon=True
            ).start()
        except RuntimeError:
            with self.lock:
                self.running.discard(job)

            raise RequestRefused(
                503, "server: the system has no thread left; try again soon", RETRY_SECONDS
            ) from None

    def check_queue(self) -> None:
        """Raise RequestRefused if all threads are stuck, or the queue is full."""
        if all(job.future.cancelled() for job in self.running):
            raise RequestRefused(
                503,
                f"model: {self.name}: all {self.workers} threads that prepare its requests are "
                "stuck; try again soon",
                RETRY_SECONDS,
            )
        if len(self.waiting) >= self.queue:
            raise RequestRefused(
                429,
                f"model: {self.name}: {self.queue} requests already wait for its tokenizer",
                RETRY_SECONDS,
            )

    def work(self, job: PreparationJob | None) -> None:
        """Body of a thread: run jobs until none waits."""
        while job is not None:
            value, error = job.run()
            # First free the thread: a client that has its answer must find it available.
            following = self.next_after(job)
            job.hand_over(value, error)
            job = following

    def next_after(self, job: PreparationJob) -> PreparationJob | None:
        with self.lock:
            self.running.discard(job)
            if not self.waiting:
                return None

            following = self.waiting.popleft()
            self.running.add(following)
            return following

    def abandon(self, job: PreparationJob) -> None:
        """Leave the queue: the request is answered, late, or its client is gone."""
        with self.lock:
            job.future.cancel()
            with suppress(ValueError):
                self.waiting.remove(job)
