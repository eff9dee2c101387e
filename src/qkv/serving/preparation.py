"""Chat templates and tokenization: work on a request before the engine, in a few threads per model.

A template is someone else's program, and a long text takes a while. So both run beside the event
loop, until the request's deadline, and in threads of the model's own: should they all be stuck,
other models are not affected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from qkv.serving.engine.generation_request import LATE, RequestRefused
from qkv.serving.http.error_log import ordinary

T = TypeVar("T")
WORKERS = 4
"""Threads per model."""
RETRY_SECONDS = 5.0
"""After which a client may come back when all threads are stuck."""


class PreparationJob:
    """Work for one request; its future belongs to the event loop of that request."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.future = work, asyncio.get_running_loop().create_future()
        self.abandoned = False
        """Nobody waits for it any more."""

    def run(self) -> tuple[Any, Exception | None]:
        """In a thread of the pool: what the work returns, or raises."""
        try:
            return self.work(), None
        except BaseException as failure:
            return None, ordinary(failure)

    def hand_over(self, value: Any, error: Exception | None) -> None:
        """To the event loop."""
        with suppress(RuntimeError):  # the event loop is closed
            self.future.get_loop().call_soon_threadsafe(self.settle, value, error)

    def settle(self, value: Any, error: Exception | None) -> None:
        if self.future.done():
            return

        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class PreparationPool:
    """A bounded pool of daemon threads for one model, and a bounded queue in front of it."""

    def __init__(self, name: str, *, workers: int = WORKERS, queue: int = 256) -> None:
        self.name, self.workers, self.queue = name, workers, queue
        self.lock = threading.Lock()
        self.running: set[PreparationJob] = set()
        self.waiting: deque[PreparationJob] = deque()

    async def run(self, work: Callable[[], T], deadline: float) -> T:
        """What the work returns; Refused when the pool is full, or at the deadline, by
        time.monotonic().
        """
        job = PreparationJob(work)
        self.add(job)

        try:
            async with asyncio.timeout(deadline - time.monotonic()) as limit:
                result: T = await job.future
                return result
        except TimeoutError:
            if limit.expired():
                raise RequestRefused(408, LATE) from None

            raise
        finally:
            self.leave(job)

    def add(self, job: PreparationJob) -> None:
        with self.lock:
            if len(self.running) < self.workers:
                self.running.add(job)
            elif all(each.abandoned for each in self.running):
                stuck = f"all {self.workers} threads that prepare texts for it are stuck"
                raise RequestRefused(
                    503, f"model: {self.name}: {stuck}; ask again soon", RETRY_SECONDS
                )
            elif len(self.waiting) >= self.queue:
                full = f"{self.queue} requests wait for its tokenizer already"
                raise RequestRefused(429, f"model: {self.name}: {full}", RETRY_SECONDS)
            else:
                self.waiting.append(job)
                return

        try:
            threading.Thread(
                target=self.work, args=(job,), name=f"preparing {self.name}", daemon=True
            ).start()
        except RuntimeError:
            with self.lock:
                self.running.discard(job)

            raise RequestRefused(
                503, "server: the system has no thread left; ask again soon", RETRY_SECONDS
            ) from None

    def work(self, job: PreparationJob | None) -> None:
        while job is not None:
            value, error = job.run()
            following = self.next_after(job)  # first: whoever has its answer finds this thread free
            job.hand_over(value, error)
            job = following

    def next_after(self, job: PreparationJob) -> PreparationJob | None:
        with self.lock:
            self.running.discard(job)
            following = self.waiting.popleft() if self.waiting else None
            if following is not None:
                self.running.add(following)

            return following

    def leave(self, job: PreparationJob) -> None:
        """The request is answered, late, or its client is gone: its place in the queue is free."""
        with self.lock:
            job.abandoned = True
            with suppress(ValueError):
                self.waiting.remove(job)
