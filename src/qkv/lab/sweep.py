"""A sweep over arms and seeds: each measurement is kept on disk, and workers share the cores."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import multiprocessing
import os
import platform
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import date
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv import storage
from qkv.lab.experiment import Cell, Experiment, Measured, Size
from qkv.lab.experiments import find
from qkv.machine import usable_cores
from qkv.training.systems.distributed import device_named
from qkv.version import __version__

FIRST_SEED = 200
"""Experiments were designed with seeds below, so that a verdict rests on runs not seen before."""
WORKERS_PER_GPU = 4
STATED_CORES = 2
"""Cores on which the small size takes the minutes that an experiment states."""
SHARED = ("fit.py", "surgery.py", "experiments/kept_memory.py", "experiments/learning_curve.py")
"""Files that many experiments use."""


class CellResult(NamedTuple):
    """What one cell gave, and how long it took."""

    arm: str
    seed: int
    measured: Measured
    seconds: float
    workers: int = 1
    """Processes that measured side by side."""
    day: str = ""


class Sweep:
    """The measurements of an experiment, those on disk and those to do.

    Args:
        experiment: The experiment.
        spec: Its name, or file.py:NAME of an experiment of one's own; workers find it by that.
        size: The settings.
        folder: Where measurements are kept; None keeps nothing.
        device: cpu, cuda ...; by default a GPU if there is one.
        workers: Processes side by side; by default one for each core. One if time is measured.

    Raises:
        ValueError: If there is no such device, or `workers` is below 1.
        OSError: If the folder cannot be written.
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
        if workers is not None and workers < 1:
            raise ValueError(f"workers: expected 1 or more, not {workers}")

        self.experiment = experiment
        self.spec = spec
        self.size = size
        self.folder = folder
        self.device = device_named(device)
        self.code = code_digest(experiment)
        self.done: dict[tuple[str, int], CellResult] = {}
        self.read()
        self.workers = min(self.most_workers(workers), max(1, len(self.to_do)))

    def most_workers(self, chosen: int | None) -> int:
        """One if time is measured; else what was chosen, one for each core, or a few for a GPU."""
        if self.experiment.timed:
            return 1
        if chosen is not None:
            return chosen
        if self.device.type == "cuda":
            return WORKERS_PER_GPU

        return usable_cores()

    @property
    def cells(self) -> list[tuple[str, int]]:
        """All arms with all seeds; one seed of all arms comes before the next."""
        seeds = range(FIRST_SEED, FIRST_SEED + self.size.seeds)
        return [(arm, seed) for seed in seeds for arm in self.experiment.arms]

    @property
    def to_do(self) -> list[tuple[str, int]]:
        """What was not measured yet."""
        return [cell for cell in self.cells if cell not in self.done]

    def path(self, arm: str, seed: int) -> Path:
        """The file of a measurement; another setting, device or code gives another name."""
        assert self.folder is not None
        parts = [arm, seed, self.size.settings, self.device.type, self.code, __version__]
        if self.experiment.timed:
            parts.append(platform.node())  # times of another machine are other times

        key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        return self.folder / "measured" / f"{key[:24]}.json"

    def read(self) -> None:
        """Read what was measured before; a damaged file is measured again."""
        if self.folder is None:
            return

        for arm, seed in self.cells:
            try:
                stored = json.loads(self.path(arm, seed).read_text())
                measured = plain(from_json(stored["measured"]))
                seconds, workers = float(stored["seconds"]), int(stored["workers"])
                day = str(stored["day"])
                self.done[arm, seed] = CellResult(arm, seed, measured, seconds, workers, day)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue

    def check_folder(self) -> None:
        """Raise at once if nothing can be written, and not after the first measurement."""
        if self.folder is not None and self.to_do:
            with storage.staging(self.folder / "measured", 0, "the measurements"):
                pass

    def keep(self, measurement: CellResult) -> None:
        """Write a measurement, all of it or nothing."""
        measurement = measurement._replace(workers=self.workers, day=date.today().isoformat())
        self.done[measurement.arm, measurement.seed] = measurement
        if self.folder is not None:
            stored = measurement._asdict() | {"measured": to_json(measurement.measured)}
            text = json.dumps(stored, allow_nan=False)
            storage.write_text(self.path(measurement.arm, measurement.seed), text)

    def seconds_left(self) -> float:
        """From what was measured; before the first measurement, from the experiment's minutes."""
        if not self.done:
            seconds = 60 * self.size.minutes * len(self.to_do) / max(1, len(self.cells))
            if self.device.type == "cuda" or self.experiment.timed:
                return seconds

            return seconds * STATED_CORES / self.workers

        by_arm: dict[str, list[float]] = {}
        for measurement in self.done.values():
            by_arm.setdefault(measurement.arm, []).append(measurement.seconds)

        mean = sum(m.seconds for m in self.done.values()) / len(self.done)
        total = 0.0
        for arm, _ in self.to_do:
            times = by_arm.get(arm, [mean])
            total += sum(times) / len(times)

        return total / self.workers

    def run(self, report: Callable[[CellResult], object] = lambda measurement: None) -> None:
        """Measure what is left; each measurement is kept as soon as it is there."""
        self.check_folder()
        if self.workers == 1 or len(self.to_do) == 1:
            for arm, seed in self.to_do:
                measurement = measure_cell(self.experiment, arm, seed, self.size, self.device)
                self.keep(measurement)
                report(measurement)

            return

        for measurement in self.in_processes():
            self.keep(measurement)
            report(measurement)

    def in_processes(self) -> Iterator[CellResult]:
        """Measure in several processes with one thread each."""
        context = multiprocessing.get_context("spawn")
        settings = vars(self.size)
        pool = ProcessPoolExecutor(self.workers, context, initializer=start_worker)
        futures: dict[Future[CellResult], tuple[str, int]] = {}
        try:
            with ignoring_interrupts():
                for arm, seed in self.to_do:
                    job = pool.submit(work, self.spec, arm, seed, settings, str(self.device))
                    futures[job] = (arm, seed)

            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                f"{self.experiment.name}: a process was killed, perhaps for lack of memory; with 1 "
                "worker less is needed, and no `if __name__ == '__main__':` in a script; what was "
                "measured is kept"
            ) from None
        finally:
            # Not shutdown alone, which would wait for the measurements that run
            for process in list((pool._processes or {}).values()):
                process.kill()

            pool.shutdown(wait=True, cancel_futures=True)


def measure_cell(
    experiment: Experiment, arm: str, seed: int, size: Size, device: torch.device
) -> CellResult:
    """Measure one arm with one seed, from the same random state every time.

    Raises:
        RuntimeError: If the measurement fails; the message says where.
    """
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - for code that uses the global generator
    random.seed(seed)
    start = perf_counter()
    try:
        measured = plain(experiment.measure(Cell(arm, seed, size, device)))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"{experiment.name}, {arm}, seed {seed}: {problem}") from error

    return CellResult(arm, seed, measured, perf_counter() - start)


# Workers


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, also while they import: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start_worker() -> None:
    """One thread for each process, which ends if its parent was killed."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait until the parent has ended; then nobody wants the measurement."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def work(spec: str, arm: str, seed: int, settings: dict[str, Any], device: str) -> CellResult:
    """Measure one cell in a worker."""
    return measure_cell(find(spec), arm, seed, Size(**settings), torch.device(device))


# What is stored


def code_digest(experiment: Experiment) -> str:
    """The checksum of the experiment's file, so that edited code measures again.

    For an experiment of the package, files that it may share with others count: those beside it
    that are not experiments, and those of the lab that train and change models.
    """
    name = experiment.measure.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return ""

    own = Path(file)
    shared: list[Path] = []
    if name.startswith("qkv."):
        shared = [path for path in own.parent.glob("*.py") if not path.stem.endswith("_lab")]
        shared += [Path(__file__).parent / path for path in SHARED]

    codes = [measuring_code(own)]
    codes += [path.read_bytes() for path in sorted(shared) if path.is_file()]
    return storage.sha256(codes)


def measuring_code(file: Path) -> bytes:
    """A file without its experiments: a claim, a check or a remark changes no measurement."""
    statements = []
    for statement in ast.parse(file.read_bytes()).body:
        is_experiment = (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and ast.unparse(statement.value.func).endswith("Experiment")
        )
        if not is_experiment:
            statements.append(ast.unparse(statement))

    return "\n".join(statements).encode()


def plain(measured: Measured) -> Measured:
    """The same with Python's own numbers.

    Raises:
        ValueError: If a number is NaN or infinite.
    """
    numbers: dict[str, Any] = {}
    for name, value in measured.items():
        if isinstance(value, Mapping):
            by_x = {}
            for x, y in value.items():
                by_x[plain_x(x)] = plain_y(y, f"{name} at {x}")

            numbers[name] = by_x
        else:
            numbers[name] = plain_y(value, name)

    return numbers


def plain_x(x: Any) -> Any:
    """An x as a string, an integer or a float."""
    if isinstance(x, str | int | float):
        return x

    return x.item()


def plain_y(value: Any, name: str) -> float | list[float]:
    """A number, or a list of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence):
        return [checked(number, name) for number in value]

    return checked(value, name)


def checked(number: Any, name: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; measurements must be finite")

    return value


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
        measured[name] = dict(values) if is_pairs else values

    return measured
