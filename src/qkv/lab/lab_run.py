"""Run experiments: plan, measure, judge, and write the page, the figures and result.json."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qkv import storage
from qkv.lab.experiment import Experiment, Size, SizeName
from qkv.lab.experiments import find
from qkv.lab.lab_results import Results
from qkv.lab.report.lab_book import write_book
from qkv.lab.report.lab_page import PAGE
from qkv.lab.report.result_files import is_written, write_results
from qkv.lab.sweep import Sweep
from qkv.machine import cpu_model, usable_cores
from qkv.model_names import PACKAGED, model_path
from qkv.training.logging.progress import clock
from qkv.training.systems.distributed import device_named
from qkv.version import __version__

FOLDER = Path("runs/lab")
"""Where results go by default: one folder for each experiment and size."""


class MissingModel(ValueError):
    """An experiment needs a packaged model that is not installed."""


class Planned(NamedTuple):
    """An experiment that is to be run."""

    spec: str
    sweep: Sweep
    size: SizeName
    settings: dict[str, Any]


def run(
    name: str,
    *,
    size: SizeName = "small",
    seeds: int | None = None,
    out: Path | str | None = FOLDER,
    device: str | None = None,
    workers: int | None = 1,
    console: Console | None = None,
    **settings: object,
) -> Results:
    """Run an experiment of the lab, or continue it, and return its numbers and its verdict.

    Args:
        name: The name of the experiment (`qkv lab` lists all), or mine.py:MINE.
        size: "small" for two CPU cores, "large" for a GPU.
        seeds: How often each arm is measured (default: what the experiment says).
        out: Folder for the page, the figures and what was measured; None writes nothing.
        device: cpu, cuda ...; by default the CPU for the small size, and a GPU for the large one.
        workers: Processes side by side; None for one on each core. A script that starts several
            needs `if __name__ == "__main__":` around the call, as always with processes.
        console: Where to print the plan and the progress; None prints nothing.
        settings: Other values for settings of the size, such as steps.

    Returns:
        The results; printed they are a table.

    Raises:
        ValueError: If there is no such experiment, size, setting or device.
        RuntimeError: If a measurement fails, or a process that measures is killed.

    Example:
        >>> from qkv.lab import run
        >>> results = run("lookup", seeds=3, steps=5, workers=1, out=None)
        >>> len(results.units)
        3
    """
    planned = prepare(name, size, seeds, out, device, workers, settings)
    say(console, plan(planned))
    with progress_line(console, [planned]) as report:
        results = complete(planned, report)

    folder = planned.sweep.folder
    if folder is not None:
        write_results(results, folder)
        write_book(folder.parent)

    return results


def run_all(
    names: Sequence[str],
    *,
    size: SizeName = "small",
    seeds: int | None = None,
    out: Path | str = FOLDER,
    device: str | None = None,
    workers: int | None = None,
    console: Console | None = None,
) -> dict[str, str]:
    """Run several experiments, one after the other, and write a book about them.

    An experiment that fails is left out, and the others go on. What is complete is not run again.

    Args:
        names: The experiments.
        size: As in `run`, and so are the others.
        seeds: How often each arm is measured.
        out: The folder of the book: its index.html is written after each experiment.
        device: cpu, cuda ...
        workers: Processes side by side.
        console: Where to print the plan, the progress and the verdicts.

    Returns:
        The experiments that failed, each with a sentence.
    """
    book = Path(out)
    plans = []
    failures: dict[str, str] = {}
    for name in names:
        try:
            plans.append(prepare(name, size, seeds, out, device, workers, {}))
        except MissingModel as error:
            failures[name] = str(error)
            say(console, f"{name} is left out: {error}")

    say(console, plan_all(plans))
    with progress_line(console, plans) as report:
        for planned in plans:
            experiment = planned.sweep.experiment
            try:
                results = complete(planned, report)
                folder = planned.sweep.folder
                assert folder is not None
                if not is_written(results, folder):
                    write_results(results, folder)
            except Exception as error:
                problem = storage.sentence(error) if isinstance(error, OSError) else str(error)
                failures[experiment.name] = problem
                say(console, f"{experiment.name}: failed: {problem}")
                continue

            write_book(book)
            say(console, f"{experiment.name}: {results.verdict}. {experiment.claim}")

    return failures


def prepare(
    name: str,
    size: SizeName,
    seeds: int | None,
    out: Path | str | None,
    device: str | None,
    workers: int | None,
    settings: dict[str, Any],
) -> Planned:
    """The experiment, with what was measured before."""
    if size not in ("small", "large"):
        raise ValueError(f"size: expected small or large, not {size!r}")

    experiment = find(name)
    chosen = experiment.size(size, seeds, **settings)
    require_model(vars(chosen).get("model"))
    folder = None
    if out is not None:
        folder = Path(out) / folder_name(experiment, size, settings)

    if device is None and size == "small":
        device = "cpu"

    sweep = Sweep(experiment, name, chosen, folder, device, workers)
    return Planned(name, sweep, size, settings)


def require_model(name: Any) -> None:
    """Raise before anything is measured if a packaged model is not installed."""
    if name in PACKAGED:
        try:
            model_path(name)
        except ValueError as error:
            raise MissingModel(str(error)) from None


def complete(planned: Planned, report: Callable[[Sweep], object]) -> Results:
    """Measure what is left, and collect everything."""
    sweep = planned.sweep
    report(sweep)
    with stated_threads(sweep):
        sweep.run(lambda measurement: report(sweep))

    return assemble_results(planned)


def folder_name(
    experiment: Experiment, size: SizeName, settings: Mapping[str, Any] | None = None
) -> str:
    """The folder of an experiment's results; with other settings it is another folder."""
    name = experiment.name
    if size == "large":
        name += "-large"

    for key, value in (settings or {}).items():
        name += "-" + re.sub(r"[^\w.]+", "-", f"{key} {value}").strip("-")

    return name[:100]


def page_path(
    name: str, size: SizeName, out: Path | str, settings: Mapping[str, Any] | None = None
) -> Path:
    """The page that `run` writes."""
    return Path(out) / folder_name(find(name), size, settings) / PAGE


# What is printed


def plan(planned: Planned) -> str:
    """What will be measured, and how long it will take."""
    sweep = planned.sweep
    experiment = sweep.experiment
    arms = counted(len(experiment.arms), "arm")
    seeds = counted(sweep.size.seeds, "seed")
    text = f"{experiment.name}, {planned.size}: {arms} x {seeds} on {sweep.device.type}"
    if not sweep.to_do:
        return f"{text}; everything is measured."
    if sweep.done:
        text += f"; {len(sweep.done)} of {len(sweep.cells)} are measured"

    text += f". Estimated time: {clock(sweep.seconds_left())}"
    if planned.size == "large" and sweep.device.type == "cpu":
        text += " on a GPU, and much longer here"

    return f"{text}."


def plan_all(plans: Sequence[Planned]) -> str:
    """The experiments that are left with their times, and the sum."""
    lines = []
    total = 0.0
    for planned in plans:
        sweep = planned.sweep
        if sweep.to_do:
            seconds = sweep.seconds_left()
            total += seconds
            lines.append(f"  {sweep.experiment.name:20} {clock(seconds)}")

    done = len(plans) - len(lines)
    head = f"{counted(len(lines), 'experiment')} to run, {done} complete."
    lines.append(f"Estimated time: {clock(total)}.")
    return "\n".join([head, *lines])


def counted(count: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(console: Console | None, text: str) -> None:
    if console is not None:
        console.print(text, soft_wrap=True, markup=False)


@contextmanager
def progress_line(
    console: Console | None, plans: Sequence[Planned]
) -> Iterator[Callable[[Sweep], object]]:
    """One line over all measurements of all experiments, with the time that is left."""
    sweeps = [planned.sweep for planned in plans]
    if console is None or not console.is_terminal or not any(sweep.to_do for sweep in sweeps):
        yield lambda sweep: None
        return

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=sum(len(sweep.cells) for sweep in sweeps), left="")

        def report(sweep: Sweep) -> None:
            done = sum(len(sweep.done) for sweep in sweeps)
            left = sum(sweep.seconds_left() for sweep in sweeps if sweep.to_do)
            text = f"about {clock(left)} left"
            bar.update(task, description=sweep.experiment.name, completed=done, left=text)

        yield report


@contextmanager
def stated_threads(sweep: Sweep) -> Iterator[None]:
    """One thread, as workers have, unless time is measured: numbers do not depend on workers."""
    threads = torch.get_num_threads()
    if not sweep.experiment.timed and sweep.device.type == "cpu":
        torch.set_num_threads(1)

    try:
        yield
    finally:
        torch.set_num_threads(threads)


# What is known about a run


def assemble_results(planned: Planned) -> Results:
    """The numbers of a finished sweep, and where they come from."""
    sweep = planned.sweep
    measured = {}
    for cell in sweep.cells:
        measured[cell] = sweep.done[cell].measured

    measurements = [sweep.done[cell] for cell in sweep.cells]
    seconds = sum(measurement.seconds / measurement.workers for measurement in measurements)
    facts = {
        "command": command_line(planned),
        "size": planned.size,
        "seeds": sweep.size.seeds,
        "minutes": round(seconds / 60, 2),
        "date": max(measurement.day for measurement in measurements),
        "machine": machine_name(sweep.device),
        "qkv": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return Results(sweep.experiment, sweep.size, measured, facts)


def command_line(planned: Planned) -> str:
    """The command that repeats the experiment."""
    words = ["qkv", "lab", planned.spec]
    device = planned.sweep.device.type
    if planned.size == "large":
        words += ["--size", "large"]
    elif device != "cpu":
        words += ["--device", device]

    chosen: Size = planned.sweep.size
    words += ["--seeds", str(chosen.seeds)]
    for key, value in planned.settings.items():
        words += ["--set", f"{key}={value}"]

    return shlex.join(words)


def machine_name(device: torch.device) -> str:
    """The GPU, or the processor and its cores."""
    device = device_named(str(device))
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    return f"{cpu_model()}, {counted(usable_cores(), 'core')}, {platform.system()}"
