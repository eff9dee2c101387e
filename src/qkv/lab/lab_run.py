"""Run an experiment: plan, measure, judge, and write the page, the figures and result.json."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qkv import storage
from qkv.lab.experiment import Experiment, Size, SizeName
from qkv.lab.experiments import find
from qkv.lab.lab_results import Results
from qkv.lab.report.lab_page import write_page
from qkv.lab.sweep import Measurement, Sweep, to_json
from qkv.training.logging.progress import clock
from qkv.training.systems.distributed import device_named
from qkv.version import __version__

FOLDER = Path("runs/lab")
"""Where results go by default: one folder for each experiment and size."""


def run(
    name: str,
    *,
    size: SizeName = "small",
    seeds: int | None = None,
    out: Path | str | None = FOLDER,
    device: str | None = None,
    workers: int | None = None,
    console: Console | None = None,
    **settings: Any,
) -> Results:
    """Run an experiment of the lab, or continue it, and return its numbers and its verdict.

    Args:
        name: The name of the experiment (`qkv lab` lists all), or mine.py:MINE.
        size: "small" for two CPU cores, "large" for a GPU.
        seeds: How often each arm is measured (default: what the experiment says).
        out: Folder for the page, the figures and what was measured; None writes nothing.
        device: cpu, cuda ...; by default the CPU for the small size, and a GPU for the large one.
        workers: Processes side by side; by default one for each core.
        console: Where to print the plan, the progress and the verdict; None prints nothing.
        settings: Other values for settings of the size, such as steps.

    Returns:
        The results; printed with rich they are a table.

    Raises:
        ValueError: If there is no such experiment, size, setting or device.

    Example:
        >>> from qkv.lab import run
        >>> results = run("lookup", seeds=3, steps=5, out=None)
        >>> len(results.units)
        3
    """
    experiment = find(name)
    if size not in ("small", "large"):
        raise ValueError(f"size: expected small or large, not {size!r}")

    if device is None and size == "small":
        device = "cpu"

    chosen = experiment.size(size, seeds, **settings)
    folder = None
    if out is not None:
        folder = Path(out) / folder_name(experiment, size)

    sweep = Sweep(experiment, name, chosen, folder, device, workers)
    say(console, plan(sweep, size))
    with progress_line(console, sweep) as report, stated_threads(experiment, sweep):
        sweep.run(report)

    results = assemble_results(sweep, size, name, settings)
    if folder is not None:
        write_results(results, folder)

    return results


def folder_name(experiment: Experiment, size: SizeName) -> str:
    """The folder of an experiment's results."""
    if size == "large":
        return f"{experiment.name}-large"

    return experiment.name


def plan(sweep: Sweep, size: SizeName) -> str:
    """What will be measured, and how long it will take."""
    experiment = sweep.experiment
    kept = len(sweep.done)
    text = (
        f"{experiment.name}, {size}: {len(experiment.arms)} arms x {sweep.size.seeds} "
        f"{'seed' if sweep.size.seeds == 1 else 'seeds'} on {sweep.device.type}"
    )
    if not sweep.to_do:
        return f"{text}; all of it is measured."
    if kept:
        text += f"; {kept} of {len(sweep.cells)} are measured"

    return f"{text}. Estimated time: {clock(sweep.seconds_left())}."


def say(console: Console | None, text: str) -> None:
    if console is not None:
        console.print(text, soft_wrap=True, markup=False)


@contextmanager
def progress_line(console: Console | None, sweep: Sweep) -> Iterator[Any]:
    """One line over all measurements, with the time that is left."""
    if console is None or not sweep.to_do:
        yield lambda measurement: None
        return

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(
            sweep.experiment.name, total=len(sweep.cells), completed=len(sweep.done), left=""
        )

        def report(measurement: Measurement) -> None:
            left = f"about {clock(sweep.seconds_left())} left" if sweep.to_do else ""
            bar.update(task, completed=len(sweep.done), left=left)
            if not console.is_terminal:
                say(
                    console,
                    f"{len(sweep.done)} of {len(sweep.cells)}: {measurement.arm}, seed "
                    f"{measurement.seed}, {measurement.seconds:.1f} s",
                )

        yield report


@contextmanager
def stated_threads(experiment: Experiment, sweep: Sweep) -> Iterator[None]:
    """One thread, as the workers have, unless time is measured: so numbers do not depend on them."""
    threads = torch.get_num_threads()
    if not experiment.timed and sweep.device.type == "cpu":
        torch.set_num_threads(1)

    try:
        yield
    finally:
        torch.set_num_threads(threads)


def assemble_results(sweep: Sweep, size: SizeName, spec: str, settings: dict[str, Any]) -> Results:
    """The numbers of a finished sweep, and where they come from."""
    measured = {}
    for cell in sweep.cells:
        measured[cell] = sweep.done[cell].measured

    seconds = sum(measurement.seconds for measurement in sweep.done.values())
    facts = {
        "command": command_line(spec, size, sweep.size, settings),
        "size": size,
        "seeds": sweep.size.seeds,
        "date": date.today().isoformat(),
        "device": device_name(sweep.device),
        "seconds": round(seconds, 1),
        "workers": sweep.workers,
        "qkv": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return Results(sweep.experiment, sweep.size, measured, facts)


def command_line(spec: str, size: SizeName, chosen: Size, settings: dict[str, Any]) -> str:
    """The command that repeats the experiment."""
    words = ["qkv", "lab", spec]
    if size == "large":
        words += ["--size", "large"]

    words += ["--seeds", str(chosen.seeds)]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]

    return shlex.join(words)


def device_name(device: torch.device) -> str:
    """The name of a GPU, or the number of cores."""
    device = device_named(str(device))
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    return f"CPU, {torch.get_num_threads()} threads"


# What is written


def write_results(results: Results, folder: Path) -> None:
    """result.json, the figure as PNG and SVG, and the page."""
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_text(folder / "result.json", json.dumps(as_json(results), indent=1) + "\n")
    write_page(results, folder)


def as_json(results: Results) -> dict[str, Any]:
    """Everything that the page shows, as JSON."""
    experiment = results.experiment
    measured = []
    for (arm, seed), measures in results.measured.items():
        measured.append({"arm": arm, "seed": seed, "measured": to_json(measures)})

    return {
        "name": experiment.name,
        "claim": experiment.claim,
        "slides": experiment.slides,
        "verdict": results.verdict,
        "findings": [
            finding._asdict() | {"effect": finding.effect._asdict()} for finding in results.findings
        ],
        "settings": {key: str(value) for key, value in results.size.settings.items()},
        **results.facts,
        "measured": measured,
    }
