"""Checkpoints of an FSDP run: every rank writes its own shards while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from qkv.checkpoint import describe
from qkv.training.resilience.checkpoint_writer import Checkpoints, Complete, Staging, Tensors
from qkv.training.systems.distributed import TIMEOUT, World


class ShardWriter(dcp.HuggingFaceStorageWriter):
    """Every rank writes one safetensors file; the first rank collects the checksums of all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.files: dict[str, dict[str, Any]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[Any]:
        results = super().write_data(plan, planner).wait()
        files = {result.storage_data.relative_path for result in results}
        checksums = {name: describe(Path(self.path) / name) for name in files}
        checked: torch.futures.Future[Any] = torch.futures.Future()
        checked.set_result([replace(result, storage_data=checksums) for result in results])

        return checked

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for rank in results:
            for result in rank:
                self.files |= result.storage_data


class ShardedCheckpoints(Checkpoints):
    """Checkpoints that all ranks write, each its shards, in the background.

    The first rank gives a checkpoint its name once the shards of all ranks are on the disk. All
    ranks must call `save` and `wait`.
    """

    def __init__(
        self, folder: Path, keep: int | None, log: Callable[[str], object], world: World
    ) -> None:
        super().__init__(folder, keep, log)
        self.world = world
        self.pending: Future[Any] | None = None
        # A group of its own: two threads must not send through one group.
        self.group = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def write(self, tensors: Tensors, folder: Path, staging: Staging, complete: Complete) -> None:
        """Copy the shards, then write them in the background."""
        self.wait()
        staged = ExitStack()
        with self.world.all_or_none():
            if self.world.first:
                self.sweep()
                staged.enter_context(staging)

        writer = ShardWriter(folder)
        written = dcp.async_save(dict(tensors), storage_writer=writer, process_group=self.group)
        assert isinstance(written, Future)
        self.pending = written

        def finish() -> None:
            with staged:
                result_of(written)
                complete(folder, writer.files)

        if self.world.first:
            thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self.pending = thread.submit(finish)
            thread.shutdown(wait=False)  # it ends with the checkpoint

    def wait(self) -> None:
        """Return when the checkpoint that is being written has its name; raise if it failed."""
        pending = self.pending
        self.pending = None
        with self.world.all_or_none():
            if pending is not None:
                result_of(pending)


def result_of(written: Future[Any]) -> None:
    """Wait for a save; raise the first rank's error if it failed on several."""
    try:
        written.result()
    except dcp.CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error
