"""Jobs, i.e. functions of a model such as those that look inside it, beside the engine's thread.

A job may take seconds, and streams must not wait for it. It runs in a thread of its own, on a copy
of the model that shares its weights: hooks that a job adds are never called by the engine. On a
GPU it has a stream of its own.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from qkv.models.model import Model
from qkv.serving.engine.generation_request import JobResult, RequestHandle, Update
from qkv.serving.error_log import as_exception
from qkv.text.tokenizer import Tokenizer

Work = Callable[[Model, Tokenizer], Any]


class JobModel:
    """A model as jobs see it."""

    def __init__(self, model: Model) -> None:
        self.stream: torch.cuda.Stream | None = None
        parameter = next(model.parameters(), None)
        if parameter is not None and parameter.is_cuda:
            self.stream = torch.cuda.Stream(parameter.device)

        copied = copy_with_shared_tensors(model)
        self.is_copy = copied is not None
        """Otherwise the engine waits for a job: a class that pickle does not know is not copied."""
        self.model = model if copied is None else copied

    def run(self, work: Work, tokenizer: Tokenizer) -> Any:
        """The result of a job, complete on the device."""
        if self.stream is None:
            return work(self.model, tokenizer)

        with torch.cuda.stream(self.stream):
            value = work(self.model, tokenizer)

        self.stream.synchronize()
        return value


class JobQueue:
    """The jobs of one model that have not started."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.job_model = JobModel(model)
        self.tokenizer = tokenizer
        self.waiting: deque[tuple[RequestHandle, Work]] = deque()


class JobThread:
    """Runs the jobs of all models one at a time, in the order in which they came."""

    def __init__(
        self, deliver: Callable[[RequestHandle, Update], None], steps: AbstractContextManager[Any]
    ) -> None:
        """Create the thread.

        Args:
            deliver: Called with the result of each job.
            steps: Held while the engines must not step.
        """
        self.deliver = deliver
        self.steps = steps
        self.wake = threading.Condition()
        self.queues: deque[JobQueue] = deque()
        """One entry for each waiting job."""
        self.closed = False
        self.threads = torch.get_num_threads()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.loop, name="qkv jobs", daemon=True)

    def add(self, queue: JobQueue, handle: RequestHandle, work: Work) -> None:
        """Queue a job."""
        with self.wake:
            queue.waiting.append((handle, work))
            self.queues.append(queue)
            self.wake.notify()

    def close(self) -> None:
        """Start no further job; a running one is not waited for."""
        with self.wake:
            self.closed = True
            self.wake.notify()

    def loop(self) -> None:
        # Half of the processors: engine and job would wait for each other's threads
        use_threads(max(1, self.threads // 2))
        self.ready.set()
        while True:
            with self.wake:
                while not self.queues and not self.closed:
                    self.wake.wait()

                if self.closed:
                    return

                queue = self.queues.popleft()

            try:
                handle, work = queue.waiting.popleft()
            except IndexError:  # its model has failed, and its jobs are answered
                continue

            if not handle.aborted:
                self.run(queue, handle, work)

    def run(self, queue: JobQueue, handle: RequestHandle, work: Work) -> None:
        job_model = queue.job_model
        try:
            with nullcontext() if job_model.is_copy else self.steps:
                update: Update = JobResult(job_model.run(work, queue.tokenizer))
        except BaseException as error:
            update = as_exception(error)

        try:
            self.deliver(handle, update)
        finally:
            del update  # an error's traceback holds this frame, and the tensors of the job


def use_threads(count: int) -> None:
    """Let PyTorch's operators use so many threads when the calling thread runs them.

    A thread takes the number that was set last in the process when it first asks for it, so it asks
    before the number is set. Threads that begin later take this one.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


class SharingPickler(pickle.Pickler):
    """Pickles modules, and keeps their tensors aside."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None

        self.tensors.append(value)
        return len(self.tensors) - 1


class SharingUnpickler(pickle.Unpickler):
    """Makes modules of what `SharingPickler` wrote, with the same tensors."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]


def copy_with_shared_tensors(model: Model) -> Model | None:
    """A copy of a model whose modules are new and whose tensors are not; None if it has lambdas."""
    file = io.BytesIO()
    pickler = SharingPickler(file)
    try:
        pickler.dump(model)
        file.seek(0)
        copied: Model = SharingUnpickler(file, pickler.tensors).load()
        return copied
    except Exception:
        return None
