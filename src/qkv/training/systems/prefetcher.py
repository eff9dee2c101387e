"""Prefetching of batches: while the device works on one, a thread makes the next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from qkv.data.batches.batch import Batch
from qkv.training.setup.training_task import TrainingData


class Prefetcher:
    """Batches by their position in the data, each made while the one before is in use."""

    def __init__(self, data: TrainingData, prepare: Callable[[Batch], Batch] | None = None) -> None:
        """Nothing is made yet; `prepare` changes each batch in the thread, as pinning it does."""
        self.data = data
        self.prepare = prepare
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self.coming: tuple[int, Future[Batch]] | None = None

    def take(self, position: int, following: int) -> Batch:
        """The batch at a position; the one at `following` is started in the background."""
        if self.coming is not None and self.coming[0] == position:
            batch = self.coming[1].result()
        else:  # the first batch, or the run went back
            batch = self.make(position)

        self.coming = following, self.thread.submit(self.make, following)
        return batch

    def make(self, position: int) -> Batch:
        batch = self.data.batch(position)
        _ = batch.count, batch.tokens  # computed here, not while the device waits
        if self.prepare is None:
            return batch

        return self.prepare(batch)

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)
