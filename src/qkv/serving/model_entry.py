"""A model that a server offers under a name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from qkv.models.configs import family
from qkv.models.model import Model
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import RequestHandle
from qkv.serving.job_thread import JobQueue
from qkv.serving.preparation import PreparationPool
from qkv.text.tokenizer import Tokenizer

MAX_RETRY_SECONDS = 60
KEPT_FINISH_TIMES = 16


class ModelEntry:
    """A model that is served under a name, from loading to failure."""

    def __init__(self, name: str, queue: int = 256) -> None:
        self.name = name
        self.preparation = PreparationPool(name, queue=queue)
        """Threads for its chat template and tokenizer."""
        self.state: Literal["loading", "ready", "failed"] = "loading"
        self.error: str | None = None
        self.engine: Engine | None = None
        self.jobs: JobQueue | None = None
        self.finish_times: list[float] = []
        """When the last few requests finished."""

    @property
    def model(self) -> Model | None:
        return None if self.engine is None else self.engine.model

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.engine is None else self.engine.tokenizer

    @property
    def family(self) -> str | None:
        """Name of the model's family, once it is loaded."""
        return None if self.model is None else family(self.model.config)

    @property
    def waiting(self) -> int:
        """Number of requests and jobs that have not started."""
        if self.engine is None or self.jobs is None:
            return 0

        return self.waiting_with([])

    @property
    def waiting_bound(self) -> int:
        """Upper bound on the requests and jobs that have not started, in constant time."""
        engine = self.engine  # a failure in the engine's thread takes it away
        if engine is None or self.jobs is None:
            return 0

        return len(engine.scheduler.waiting) + len(self.jobs.waiting)

    def waiting_with(self, arriving: Sequence[RequestHandle]) -> int:
        """Number of requests and jobs that have not started, with those on their way to the queue.

        A request that is just being added to the queue is in both, and counts once.
        """
        engine = self.engine
        if engine is None or self.jobs is None:
            return len(arriving)

        requests = {id(handle) for handle in arriving}
        for handle in engine.waiting_requests:
            requests.add(id(handle))

        return len(requests) + len(self.jobs.waiting)

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of the engine; empty while the model loads."""
        if self.engine is None:
            return {}

        return {**self.engine.metrics(), "waiting": self.waiting}

    def retry_after(self) -> int:
        """Seconds until a waiting request has probably started."""
        if len(self.finish_times) < 2:
            return 1

        between = (self.finish_times[-1] - self.finish_times[0]) / (len(self.finish_times) - 1)
        waiting = max(1, self.waiting)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(between * waiting / 2)))

    def fail(self, error: str) -> list[RequestHandle]:
        """Stop serving the model; returns the requests and jobs that are not answered."""
        handles: list[RequestHandle] = []
        if self.engine is not None:
            handles += self.engine.handles()

        while self.jobs is not None and self.jobs.waiting:
            handles.append(self.jobs.waiting.popleft()[0])

        self.state = "failed"
        self.error = error
        self.engine = None
        return handles
