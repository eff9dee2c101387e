"""qkv lab: every claim of the lectures as an experiment."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from qkv.command_line.parsing import run_command
from qkv.lab.experiment import SizeName
from qkv.lab.lab_run import FOLDER
from qkv.lab.lab_run import run as run_experiment
from qkv.lab.matrices import cats, mask

MATRICES: dict[str, Callable[..., Any]] = {"cats": cats, "mask": mask}


@dataclass
class LabCommand:
    """Run an experiment, or continue it; write its page, figures and result.json."""

    name: tyro.conf.Positional[str]
    """The name of an experiment (qkv lab lists all), all, or mine.py:MINE."""
    size: SizeName = "small"
    """small for two CPU cores (at most five minutes), large for a GPU (at most ten)."""
    seeds: int | None = None
    """How often each arm is measured; by default what the experiment says."""
    out: Path = FOLDER
    """Folder for the results of all experiments."""
    device: str | None = None
    """cpu, cuda ...; by default the CPU for small, and a GPU for large."""
    workers: int | None = None
    """Processes side by side; by default one for each core."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = field(default=())
    """Another value for a setting, as steps=500."""

    def run(self) -> None:
        console = Console(highlight=False)
        settings = dict(map(parse_setting, self.set))
        results = run_experiment(
            self.name,
            size=self.size,
            seeds=self.seeds,
            out=self.out,
            device=self.device,
            workers=self.workers,
            console=console,
            **settings,
        )
        console.print(results)
        for finding in results.findings:
            console.print(f"{finding.verdict}: {finding.says}. {finding.test}", markup=False)
        console.print(f"[bold]{results.verdict}[/]: {results.experiment.claim}")


def parse_setting(text: str) -> tuple[str, Any]:
    """steps=500 as a name and a value."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"set: expected KEY=VALUE, as steps=500, not {text!r}")

    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def run(arguments: list[str]) -> None:
    """Run the experiment that the first argument names."""
    if arguments and arguments[0] in MATRICES:
        name, *rest = arguments
        run_command(MATRICES[name], rest, f"qkv lab {name}")
        return

    run_command(LabCommand, arguments, "qkv lab")
