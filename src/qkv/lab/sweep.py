"""A sweep over arms and seeds: each measurement is kept on disk, and workers share the cores."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from qkv import storage
from qkv.lab.experiment import Cell, Experiment, Measured, Size
from qkv.lab.experiments import find
from qkv.training.systems.distributed import device_named

WORKERS_PER_GPU = 4


class Measurement(NamedTuple):
    """What one cell gave, and how long it took."""

    arm: str
    seed: int
    measured: Measured
    seconds: float


class Sweep:
    """The measurements of an experiment, those on disk and those to do.

    Args:
        experiment: The experiment.
        spec: Its name, or file.py:NAME of an experiment of one's own; workers find it by that.
        size: The settings.
        folder: Where measurements are kept; None keeps nothing.
        device: cpu, cuda ...; by default a GPU if there is one.
        workers: Processes side by side; by default one for each core, and one if time is measured.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: str,
        size: Size,
        folder: Path | None,
        device: str | None = None,
        workers: int | None = None,
    ) -> None:
        self.experiment = experiment
        self.spec = spec
        self.size = size
        self.folder = folder
        self.device = device_named(device)
        self.code = code_digest(experiment)
        self.done: dict[tuple[str, int], Measurement] = {}
        self.read()
        self.workers = min(workers or self.default_workers(), max(1, len(self.to_do)))

    def default_workers(self) -> int:
        """One process if time is measured, else one for each core, or a few for a GPU."""
        if self.experiment.timed:
            return 1
        if self.device.type == "cuda":
            return WORKERS_PER_GPU

        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2

    @property
    def cells(self) -> list[tuple[str, int]]:
        """All arms with all seeds; one seed of all arms comes before the next."""
        return [(arm, seed) for seed in range(self.size.seeds) for arm in self.experiment.arms]

    @property
    def to_do(self) -> list[tuple[str, int]]:
        """What was not measured yet."""
        return [cell for cell in self.cells if cell not in self.done]

    def path(self, arm: str, seed: int) -> Path:
        """The file of a measurement; another setting, device or code gives another name."""
        assert self.folder is not None
        parts = [arm, seed, self.size.settings, self.device.type, self.code]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        return self.folder / "measured" / f"{key[:24]}.json"

    def read(self) -> None:
        """Read what was measured before; a damaged file is measured again."""
        if self.folder is None:
            return

        for arm, seed in self.cells:
            try:
                stored = json.loads(self.path(arm, seed).read_text())
                measured = from_json(stored["measured"])
                self.done[arm, seed] = Measurement(arm, seed, measured, stored["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def keep(self, measurement: Measurement) -> None:
        """Write a measurement, all of it or nothing."""
        self.done[measurement.arm, measurement.seed] = measurement
        if self.folder is not None:
            path = self.path(measurement.arm, measurement.seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            stored = measurement._asdict() | {"measured": to_json(measurement.measured)}
            storage.write_text(path, json.dumps(stored))

    def seconds_left(self) -> float:
        """From what was measured; before the first measurement, from the experiment's minutes."""
        if not self.done:
            return 60 * self.size.minutes * len(self.to_do) / max(1, len(self.cells))

        by_arm: dict[str, list[float]] = {}
        for measurement in self.done.values():
            by_arm.setdefault(measurement.arm, []).append(measurement.seconds)

        mean = sum(m.seconds for m in self.done.values()) / len(self.done)
        total = 0.0
        for arm, _ in self.to_do:
            times = by_arm.get(arm, [mean])
            total += sum(times) / len(times)

        return total / self.workers

    def run(self, report: Callable[[Measurement], object] = lambda measurement: None) -> None:
        """Measure what is left; each measurement is kept as soon as it is there."""
        if self.workers == 1 or len(self.to_do) == 1:
            for arm, seed in self.to_do:
                measurement = measure_cell(self.experiment, arm, seed, self.size, self.device)
                self.keep(measurement)
                report(measurement)

            return

        for measurement in self.in_processes():
            self.keep(measurement)
            report(measurement)

    def in_processes(self) -> Iterator[Measurement]:
        """Measure in several processes with one thread each."""
        context = multiprocessing.get_context("spawn")
        settings = vars(self.size)
        pool = ProcessPoolExecutor(self.workers, context, initializer=start_worker)
        futures: dict[Future[Measurement], tuple[str, int]] = {}
        try:
            for arm, seed in self.to_do:
                job = pool.submit(work, self.spec, arm, seed, settings, str(self.device))
                futures[job] = (arm, seed)

            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                f"{self.experiment.name}: a process was killed, probably for lack of memory; "
                "--workers 1 needs less. What was measured is kept."
            ) from None
        finally:
            # Not shutdown alone, which would wait for the measurements that run
            for process in list((pool._processes or {}).values()):
                process.terminate()

            pool.shutdown(wait=True, cancel_futures=True)


def measure_cell(
    experiment: Experiment, arm: str, seed: int, size: Size, device: torch.device
) -> Measurement:
    """Measure one arm with one seed, from the same random state every time."""
    torch.manual_seed(seed)
    start = perf_counter()
    try:
        measured = experiment.measure(Cell(arm, seed, size, device))
    except Exception as error:
        error.add_note(f"in {experiment.name}, {arm}, seed {seed}")
        raise

    return Measurement(arm, seed, measured, perf_counter() - start)


def start_worker() -> None:
    """One thread for each process; Ctrl-C is for the parent, which ends its workers."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def work(spec: str, arm: str, seed: int, settings: dict[str, Any], device: str) -> Measurement:
    """Measure one cell in a worker."""
    return measure_cell(find(spec), arm, seed, Size(**settings), torch.device(device))


def code_digest(experiment: Experiment) -> str:
    """The checksum of the experiment's file, so that edited code measures again."""
    file = getattr(sys.modules.get(experiment.measure.__module__), "__file__", None)
    if file is None:
        return ""

    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def to_json(measured: Measured) -> dict[str, Any]:
    """Numbers by x as pairs, since keys of JSON are strings."""
    stored: dict[str, Any] = {}
    for name, by_x in measured.items():
        stored[name] = [[x, y] for x, y in by_x.items()] if hasattr(by_x, "items") else by_x

    return stored


def from_json(stored: dict[str, Any]) -> Measured:
    """What `to_json` made, as it was."""
    measured: dict[str, Any] = {}
    for name, values in stored.items():
        is_pairs = isinstance(values, list) and values and isinstance(values[0], list)
        measured[name] = {x: y for x, y in values} if is_pairs else values

    return measured
