"""qkv evaluate: scores of one or several models on one or several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine
from qkv.command_line.output_checks import check_writable
from qkv.command_line.subjects import data_checksums, model_titles, open_subject, run_task
from qkv.data.sources.files import find_files
from qkv.data.sources.lines import read_lines
from qkv.data.sources.named import is_named
from qkv.data.sources.source import open_pairs
from qkv.evaluation import report
from qkv.evaluation.bleu import check_translations
from qkv.evaluation.evaluate import EvaluationResult
from qkv.evaluation.evaluators import score_translations
from qkv.evaluation.protocol import Protocol, ProtocolFlags
from qkv.evaluation.task_file import EvaluationTask, read_task
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.training.run_config import pick_fields

TaskData = tuple[EvaluationTask, list[str]]
"""A task and its data files; none for a task with embedded data."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(ProtocolFlags):
    """Score one or several models on one or several tasks, with a confidence interval per score.

    qkv evaluate smollm2 --task agreement --task last-word

    qkv evaluate runs/a runs/b --task lambada=lambada.jsonl --task hellaswag=valid.jsonl --out
    scores.json

    qkv evaluate smollm2 --task sst-2 --data dev.tsv --examples train.tsv --shots 0 1 5

    qkv evaluate runs/mine --task perplexity --data my.txt --stride 64

    qkv evaluate runs/encoder --task masked-words --data valid.txt

    qkv evaluate runs/translator --task translation --data test.en test.de

    qkv evaluate --task translation --hypotheses output.de --data test.de
    """

    models: tyro.conf.Positional[tuple[str, ...]] = ()
    """Folders of runs or of transformers, GGUF files, or smollm2."""
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """lambada, hellaswag, cbt, blimp, sst-2, rte, translation, perplexity, masked-words; agreement,
    last-word, french and french-slide (the lecture's prompt) have embedded data; or a task file
    (.toml). NAME=FILE gives the task its data."""
    data: tuple[str, ...] = ()
    """The data of the task without =FILE; with several such tasks, one file each, in order."""
    shots: tuple[int, ...] = (0,)
    """Solved examples before each question (few-shot); several numbers give several scores."""
    hypotheses: Path | None = None
    """Existing translations, one a line, to be scored without a model."""
    out: Path | None = None
    """Write all results, and what is needed to repeat them, to this JSON file."""
    plot: Path | None = None
    """Draw the scores to this .png, .svg or .pdf file."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        tasks = tasks_with_data(self.task, self.data)
        protocol = Protocol(**pick_fields(vars(self), ProtocolFlags))
        shots = list(dict.fromkeys(self.shots))
        protocols = [replace(protocol, shots=number) for number in shots]
        if not protocols:
            raise ValueError("shots: expected one number or more")

        check_writable("out", self.out)
        check_writable("plot", self.plot)
        if self.plot is not None:
            from qkv.insight.render.figures.figure_style import check_ending

            check_ending(self.plot)

        results = EvaluationResults(
            tasks, asdict(protocol) | {"shots": shots} | asdict(self.machine)
        )

        try:
            if self.hypotheses is not None:
                results.results.append(self.score_hypotheses(self.hypotheses, tasks, protocols))
            elif not self.models:
                raise ValueError("models: expected one model or more, such as runs/mine or smollm2")

            self.evaluate_models(results, protocols)
        except BaseException as error:
            results.failure = str(error) or type(error).__name__
            raise
        finally:
            if results.results:  # results so far are kept if a later one fails
                self.show_results(results)

    def evaluate_models(self, results: EvaluationResults, protocols: Sequence[Protocol]) -> None:
        """Evaluate each model on each task, one model in memory at a time."""
        models = list(dict.fromkeys(self.models))
        for name, title in zip(models, model_titles(models), strict=True):
            subject, identity = open_subject(name, title, self.machine, GPT, BERT, Transformer, RNN)
            results.models[title] = identity
            for task, data in results.tasks:
                for result in run_task(task, subject, data, protocols):
                    results.results.append(result)

            del subject  # frees the memory before the next model is loaded

    def score_hypotheses(
        self, hypotheses: Path, tasks: Sequence[TaskData], protocols: Sequence[Protocol]
    ) -> EvaluationResult:
        """BLEU and chrF of existing translations: --data holds pairs, or references by line."""
        if self.models or len(tasks) != 1 or tasks[0][0].kind != "translation":
            raise ValueError("hypotheses: expected --task translation alone, and no model")
        if any(protocol.shots for protocol in protocols):
            raise ValueError(
                "shots: existing translations have no examples before them; leave it out"
            )

        task, data = tasks[0]
        if not data:
            raise ValueError(
                "data: expected the references: a file with a line each, or pairs of source and "
                "target"
            )

        translations = []
        for file in find_files(str(hypotheses), piped="text"):
            translations += [line for _, line in read_lines(file)]

        references = read_references(data)
        check_translations(translations, references)
        first = slice(self.limit)
        scores = score_translations(
            translations[first], references[first], self.seed, "translations as given"
        )

        return EvaluationResult(task=task.name, model=hypotheses.name, shots=0, **scores)

    def show_results(self, results: EvaluationResults) -> None:
        """Print the table with its notes, and write the JSON file and the plot."""
        console = Console(highlight=False)
        console.print(report.score_table(results.results))
        for line in report.notes(results.results):
            console.print(line, style="dim", markup=False, soft_wrap=True)

        values = results.as_json()
        if self.out is not None:
            report.write_json(self.out, values)

        if self.plot is not None:
            from qkv.insight.render.figures import score_figure

            score_figure.plot(values, self.plot)


@dataclass
class EvaluationResults:
    """The results so far, and what is needed to repeat them."""

    tasks: list[TaskData]
    options: dict[str, Any]
    models: dict[str, Any] = field(default_factory=dict)
    results: list[EvaluationResult] = field(default_factory=list)
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """All that is needed to repeat the evaluation: results, tasks, checksums and settings."""
        finished = {result.task for result in self.results}
        tasks = {}
        checksums = {}

        for task, data in self.tasks:
            if task.name in finished:
                tasks[task.name] = task.as_json()
                checksums[task.name] = data_checksums(files_of(task, data))

        return {
            "results": list(map(report.result_json, self.results)),
            "tasks": tasks,
            "data": checksums,
            "models": self.models,
            "asked": self.options,
            "failure": self.failure or None,
            **report.software_versions(),
        }


# Tasks and their data


def tasks_with_data(arguments: Sequence[str], data: Sequence[str]) -> list[TaskData]:
    """Each task of --task with its data: the files after =, or those of --data."""
    tasks = []
    without_data = []

    for argument in arguments:
        name, files = split_task(argument)
        tasks.append((read_task(name), files))
        if not files:
            without_data.append(name)

    if not tasks:
        raise ValueError("task: expected one task or more, such as --task lambada")

    check_data(without_data, data)

    # One task without =FILE takes all of --data, several take one file each.
    remaining = [list(data)]
    if len(without_data) > 1:
        remaining = [[file] for file in data]

    paired = []
    for task, files in tasks:
        if not files and remaining:
            files = remaining.pop(0)

        paired.append((task, files))

    return with_distinct_names(paired)


def split_task(argument: str) -> tuple[str, list[str]]:
    """The name of a task and the files after =."""
    name, equals, listed = argument.partition("=")
    if not equals:
        return name, []

    files = listed.split(",")
    if not all(files):
        raise ValueError(f"task: expected NAME=FILE or NAME=FILE,FILE, not {argument!r}")

    return name, files


def check_data(without_data: Sequence[str], data: Sequence[str]) -> None:
    """Refuse files of --data that no task, or an unclear one, would take."""
    if data and not without_data:
        raise ValueError(f"data: every task has its data after =, so {data[0]} belongs to none")
    if data and len(without_data) > 1 and len(data) != len(without_data):
        raise ValueError(
            f"data: {len(data)} files for {len(without_data)} tasks ({', '.join(without_data)}); "
            f"name the file of each, as in --task {without_data[0]}={data[0]}"
        )

    for file in data:
        if file.startswith("-"):
            raise ValueError("data: a pipe can be read only once; write it into a file first")


def with_distinct_names(tasks: Sequence[TaskData]) -> list[TaskData]:
    """Add the files to the names of tasks that share one; drop exact duplicates."""
    different: dict[tuple[str, ...], TaskData] = {}
    for task, data in tasks:
        different.setdefault((task.name, task.origin, *files_of(task, data)), (task, data))

    renamed = []
    for task, data in different.values():
        same = [labels(*item) for item in different.values() if item[0].name == task.name]
        if len(same) > 1:
            label = distinguishing_label(labels(task, data), same)
            task = replace(task, name=f"{task.name} ({label})")

        renamed.append((task, data))

    return renamed


def distinguishing_label(own: Sequence[str], same: Sequence[Sequence[str]]) -> str:
    """The shortest of a task's labels where those of all tasks of its name differ."""
    for label, names in zip(own, zip(*same, strict=True), strict=True):
        if len(set(names)) == len(names):
            return label

    return own[-1]


def labels(task: EvaluationTask, data: Sequence[str]) -> list[str]:
    """What a task may be called by: names of its files, their paths, and the task's own file."""
    files = files_of(task, data)
    paths = ", ".join(files)
    return [", ".join(Path(file).name for file in files), paths, f"{task.origin}, {paths}"]


def files_of(task: EvaluationTask, data: Sequence[str]) -> Sequence[str]:
    """The files of a task: those of the command line, or its embedded data."""
    return data or [task.beside(task.data)]


def read_references(data: Sequence[str]) -> list[str]:
    """The lines of a single text file, or the targets of pairs."""
    if len(data) == 1 and not is_named(data[0]):
        file = find_files(data[0], piped="text")[0]
        if file.format == "text":
            return [line for _, line in read_lines(file)]

    return [target for _, target in open_pairs(data)]
