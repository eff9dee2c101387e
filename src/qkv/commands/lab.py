"""qkv lab: every claim of the lectures as an experiment."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.markup import escape

from qkv.command_line.parsing import run_command
from qkv.command_line.usage_errors import UsageError, suggestion
from qkv.lab.experiment import SizeName
from qkv.lab.experiments import every_experiment, find, modules
from qkv.lab.lab_results import Results
from qkv.lab.lab_run import FOLDER, page_path, run_all
from qkv.lab.lab_run import run as run_experiment
from qkv.lab.matrices import cats, mask
from qkv.lab.report.lab_page import PAGE
from qkv.lab.report.result_files import read_result
from qkv.plugins import is_plugin
from qkv.tables import Table

ALL = "all"
STYLES = {"holds": "green", "does not hold": "yellow", "cannot be told": "blue"}


class MatrixLab(NamedTuple):
    """A picture of the lectures that has no arms and no seeds."""

    command: Callable[..., Any]
    shows: str
    slides: str


MATRICES = {
    "cats": MatrixLab(cats, "Cross-attention of a translation shows which words align.", "001 L77"),
    "mask": MatrixLab(mask, "A causal mask hides the keys after each query.", "001 L223"),
}


@dataclass
class LabCommand:
    """Run an experiment, or continue it; write its page, its figures and result.json.

    Without a name, all experiments are listed. qkv lab all runs those that are not complete, and
    writes a book: an index of all pages. What was measured is kept, so the same command goes on
    after an interruption.
    """

    name: tyro.conf.Positional[str] = ""
    """The name of an experiment, all, or mine.py:MINE."""
    size: SizeName = "small"
    """small for two CPU cores (at most five minutes), large for a GPU (at most ten)."""
    seeds: int | None = None
    """How often each arm is measured; by default what the experiment says."""
    out: Path = FOLDER
    """Folder for the results of all experiments."""
    only: tuple[str, ...] = ()
    """With all: the experiments to run."""
    device: str | None = None
    """cpu, cuda ...; by default the CPU for small, and a GPU for large."""
    workers: int | None = None
    """Processes side by side; by default one for each core."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = field(default=())
    """Another value for a setting, as steps=500."""

    def run(self) -> bool | None:
        console = Console(highlight=False)
        if not self.name:
            console.print(list_experiments(self.out))
            return None

        try:
            if self.name == ALL:
                self.run_book(console)
            else:
                self.run_one(console)
        except KeyboardInterrupt:
            print(
                f"qkv: stopped; what was measured is kept in {self.out}, and the same command "
                "goes on",
                file=sys.stderr,
            )
            return False

        return None

    def run_one(self, console: Console) -> None:
        if self.only:
            raise UsageError("only: it is for qkv lab all")

        check_name(self.name)
        settings = dict(map(parse_setting, self.set))
        try:
            find(self.name).size(self.size, self.seeds, **settings)
        except ValueError as error:
            raise UsageError(str(error)) from error

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
        print_verdict(results, console)
        page = page_path(self.name, self.size, self.out, settings)
        console.print(escape(str(page)), soft_wrap=True)

    def run_book(self, console: Console) -> None:
        if self.set:
            raise UsageError("set: it is for one experiment, since each has its own settings")

        names = self.only or tuple(modules())
        for name in names:
            check_name(name)

        failures = run_all(
            names,
            size=self.size,
            seeds=self.seeds,
            out=self.out,
            device=self.device,
            workers=self.workers,
            console=console,
        )
        console.print(escape(str(self.out / PAGE)), soft_wrap=True)
        if failures:
            raise RuntimeError("\n".join(f"{name}: {why}" for name, why in failures.items()))


def check_name(name: str) -> None:
    """Raise UsageError unless there is such an experiment."""
    known = [*modules(), *MATRICES, ALL]
    if not is_plugin(name) and name not in modules():
        hint = suggestion(name, known) or "; qkv lab lists all"
        raise UsageError(f"lab: there is no experiment {name!r}{hint}")

    find(name)


def print_verdict(results: Results, console: Console) -> None:
    """The table; then the verdict, the word first, and what it rests on."""
    console.print(results)
    style = STYLES[results.verdict]
    verdict = results.verdict
    if verdict == "cannot be told":
        verdict += " at this size"  # type: ignore[assignment]

    claim = escape(results.experiment.claim)
    console.print(f"\n[bold {style}]{verdict}[/]: {claim}", soft_wrap=True)
    for finding in results.findings:
        word = f"[{STYLES[finding.verdict]}]{finding.verdict}[/]"
        console.print(f"  {word}: {escape(finding.says)}. {escape(finding.test)}", soft_wrap=True)

    if results.experiment.remark and not results.changed:
        console.print(escape(results.experiment.remark), soft_wrap=True)


def list_experiments(out: Path) -> Table:
    """All experiments: what they claim, where, how long they take, and what was found."""
    table = Table(header_style="bold", caption_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("claim")
    table.add_column("slide", no_wrap=True)
    table.add_column("minutes", justify="right", no_wrap=True)
    table.add_column("run")
    minutes = 0.0
    for experiment in every_experiment():
        small = experiment.small.minutes
        minutes += small
        name = experiment.name
        found = f"{run_text(out, name, '')} {run_text(out, name, '-large')}".strip()
        slides = [slide for slide in experiment.slides if slide[:1].isdigit()]
        slide = slides[0] if slides else "beyond"
        table.add_row(name, escape(experiment.claim), slide, f"{small:g}", found)

    for name, lab in MATRICES.items():
        table.add_row(name, lab.shows, lab.slides, "", "")

    table.caption = (
        "qkv lab NAME runs one; qkv lab all --out book runs all, on two cores in about "
        f"{minutes:.0f} minutes."
    )
    return table


def run_text(out: Path, name: str, ending: str) -> str:
    """The verdict and the date of results in the folder, or nothing."""
    result = read_result(out / f"{name}{ending}")
    if result is None:
        return ""

    style = STYLES.get(result["verdict"], "")
    size = "large: " if ending else ""
    facts = escape(f"{result.get('minutes', '?')} min, {result.get('date', '')}")
    return f"{size}[{style}]{result['verdict']}[/] {facts}"


def parse_setting(text: str) -> tuple[str, Any]:
    """steps=500 as a name and a value."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"set: expected KEY=VALUE, as steps=500, not {text!r}")

    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def run(arguments: list[str]) -> Any:
    """Run the experiment that the first argument names; False if it was interrupted."""
    if arguments and arguments[0] in MATRICES:
        name, *rest = arguments
        return run_command(MATRICES[name].command, rest, f"qkv lab {name}")

    return run_command(LabCommand, arguments, "qkv lab")
