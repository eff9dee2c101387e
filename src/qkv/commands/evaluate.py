"""qkv evaluate: scores of one or several models in one or several tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.artifact import checksum
from qkv.command_line.model_opening import Machine, check_place, device_of, open_model
from qkv.data.sources.files import find_files
from qkv.data.sources.lines import lines
from qkv.data.sources.source import SPLITS, open_pairs
from qkv.evaluation import report
from qkv.evaluation.bleu import check
from qkv.evaluation.evaluate import (
    EvaluationResult,
    Protocol,
    Subject,
    evaluate,
    scored,
    takes_examples,
)
from qkv.evaluation.task_file import EvaluationTask, read_task
from qkv.insight.render.figures import score_figure
from qkv.insight.render.figures.figure_style import check_ending
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.models.registry import Model, family
from qkv.text import Tokenizer


def run(
    models: tyro.conf.Positional[tuple[str, ...]] = (),
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    data: tuple[str, ...] = (),
    shots: tuple[int, ...] = (0,),
    seed: int = 0,
    limit: int | None = None,
    examples: tuple[str, ...] = (),
    window: int | None = None,
    stride: int | None = None,
    beams: int = 4,
    hypotheses: Path | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Score one or several models in one or several tasks, with an interval on every score.

    qkv evaluate smollm2 --task agreement --task last-word

    qkv evaluate runs/a runs/b --task lambada=lambada.jsonl --task hellaswag=valid.jsonl --out
    scores.json

    qkv evaluate smollm2 --task sst-2 --data dev.tsv --examples train.tsv --shots 0 1 5

    qkv evaluate runs/mine --task perplexity --data my.txt --stride 64

    qkv evaluate runs/encoder --task masked-words --data valid.txt

    qkv evaluate runs/translator --task translation --data test.en test.de

    qkv evaluate --task translation --hypotheses said.de --data test.de

    Args: models: Folders of runs or of transformers, GGUF files, or smollm2. task: lambada,
        hellaswag, cbt, blimp, sst-2, rte, translation, perplexity, masked-words; agreement,
        last-word and french have small data of their own; or a task file (.toml). NAME=FILE says
        which data it is asked of. data: The data of the task that was given without =FILE; of
        several such tasks, one file each, in order. shots: How many answered examples come before a
        question; several numbers for several scores. seed: Chooses the examples, and draws for the
        intervals. limit: Ask only the first N questions of each task: rows of a table, sentence
        pairs, windows of a text (perplexity; see --window and --stride), or stretches as long as
        the context (masked words). examples: A file that the examples are chosen from; the other
        rows of the data unless given. window: Perplexity: how many tokens are read at once; the
        context, or 1,024, whichever is less. stride: Perplexity: how many tokens of a window are
        scored, the rest being context; half of the window. beams: Translation: how many
        translations are followed side by side. hypotheses: Translations that are there already, a
        line each, to be scored without a model. out: Write all results, and what is needed to
        repeat them, into this JSON file. plot: Draw the scores into this .png, .svg or .pdf file.
        machine: Where and how it computes.
    """
    asked = paired([(name, read_task(name), given) for name, given in map(named, task)], data)
    protocol = Protocol(
        seed=seed, limit=limit, examples=examples, window=window, stride=stride, beams=beams
    )
    protocols = [replace(protocol, shots=number) for number in dict.fromkeys(shots)]
    if not protocols:
        raise ValueError("shots: expected one number or more")

    check_place("out", out)
    check_place("plot", plot)
    if plot is not None:
        check_ending(plot)

    how = asdict(protocol) | {"shots": [each.shots for each in protocols]} | asdict(machine)
    found = EvaluationResults(asked, how)

    try:
        if hypotheses is not None:
            found.results.append(written(asked, hypotheses, models, protocols))
        elif not models:
            raise ValueError("models: expected one model or more, such as runs/mine or smollm2")

        for name, title in zip(
            dict.fromkeys(models), titles(list(dict.fromkeys(models))), strict=True
        ):
            subject, found.models[title] = opened(name, title, machine, GPT, BERT, Transformer, RNN)
            for each, given in asked:
                for result in answers(each, subject, given, protocols):
                    found.results.append(result)

            del subject  # before the next one needs the memory
    except BaseException as error:
        found.failure = str(error) or type(error).__name__
        raise
    finally:
        if found.results:  # what took long is not lost because something after it failed
            tell(found, out, plot)


@dataclass
class EvaluationResults:
    """All that is known by now."""

    asked: list[tuple[EvaluationTask, list[str]]]
    how: dict[str, Any]
    models: dict[str, Any] = field(default_factory=dict)
    results: list[EvaluationResult] = field(default_factory=list)
    failure: str = ""


def tell(found: EvaluationResults, out: Path | None, plot: Path | None) -> None:
    console = Console(highlight=False)
    console.print(report.table(found.results))
    for line in report.notes(found.results):
        console.print(line, style="dim", markup=False, soft_wrap=True)

    answered = {result.task for result in found.results}
    asked = [(task, given) for task, given in found.asked if task.name in answered]
    files = {task.name: fingerprints(own(task, given)) for task, given in asked}
    whole = report.as_json(
        found.results,
        [task for task, _ in asked],
        files,
        found.models,
        found.how,
        failure=found.failure,
    )

    if out is not None:
        report.write(out, whole)

    if plot is not None:
        score_figure.plot(whole, plot)


# What was asked


def named(task: str) -> tuple[str, list[str]]:
    """A task's name and, after =, its data."""
    name, equals, files = task.partition("=")
    if equals and not all(files.split(",")):
        raise ValueError(f"task: expected NAME=FILE or NAME=FILE,FILE, not {task!r}")

    return name, files.split(",") if equals else []


def paired(
    tasks: Sequence[tuple[str, EvaluationTask, list[str]]], data: Sequence[str]
) -> list[tuple[EvaluationTask, list[str]]]:
    """Each task with its data: its own after =, or what --data says."""
    if not tasks:
        raise ValueError("task: expected one task or more, such as --task lambada")

    waiting = [name for name, _, given in tasks if not given]
    if data and not waiting:
        raise ValueError(f"data: every task has its data after =, so {data[0]} belongs to none")
    if data and len(waiting) > 1 and len(data) != len(waiting):
        raise ValueError(
            f"data: {len(data)} files for {len(waiting)} tasks ({', '.join(waiting)}); say which belongs to which, as "
            f"in --task {waiting[0]}={data[0]}"
        )

    for item in data:
        if item.startswith("-"):
            raise ValueError("data: a pipe can be read only once; write it into a file first")

    rest = iter([[item] for item in data] if len(waiting) > 1 else [list(data)])

    return apart([(task, given or next(rest, [])) for _, task, given in tasks])


def apart(
    asked: Sequence[tuple[EvaluationTask, list[str]]],
) -> list[tuple[EvaluationTask, list[str]]]:
    """Tasks of one name are told apart by their files; the very same one twice is asked once."""
    different = {
        (task.name, task.origin, *own(task, given)): (task, given) for task, given in asked
    }.values()
    made = []

    for task, given in different:
        same = [each for each in different if each[0].name == task.name]
        ways = (
            short_names,
            full_names,
            lambda task, given: f"{task.origin}, {full_names(task, given)}",
        )
        way = next(way for way in ways if len({way(*each) for each in same}) == len(same))
        made.append(
            (
                replace(task, name=f"{task.name} ({way(task, given)})") if len(same) > 1 else task,
                given,
            )
        )

    return made


def own(task: EvaluationTask, given: Sequence[str]) -> Sequence[str]:
    """The files that a task is asked of: what was given, or what it has itself."""
    return given or [task.beside(task.data)]


def full_names(task: EvaluationTask, given: Sequence[str]) -> str:
    return ", ".join(own(task, given))


def short_names(task: EvaluationTask, given: Sequence[str]) -> str:
    return ", ".join(Path(item).name for item in own(task, given))


def titles(models: Sequence[str]) -> list[str]:
    """What tells them apart: the last part of a path where that is enough."""
    short = [Path(name).name for name in models]
    return [
        one if short.count(one) == 1 and one else name
        for one, name in zip(short, models, strict=True)
    ]


def opened(
    name: str, title: str, machine: Machine, *wanted: type[Model]
) -> tuple[Subject, dict[str, Any]]:
    """A model and who it is: the weights as they were saved tell that, before they become bytes."""
    device_of(machine)
    model, tokenizer = open_model(name, replace(machine, int8=False), *wanted)
    told = {"path": name, **identity(model, tokenizer), "int8": machine.int8}
    if machine.int8:
        from qkv.models.quantize import int8

        model = int8(model)

    return Subject(title, model, tokenizer), told


def identity(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    weight = next(model.parameters())
    return {
        "family": family(model.config),
        "parameters": sum(each.numel() for each in model.parameters()),
        "sha256 of weights": checksum(model.state_dict()),
        "sha256 of tokenizer": tokenizer.fingerprint,
        "device": str(weight.device),
        "dtype": str(weight.dtype).removeprefix("torch."),
    }


def fingerprints(data: Sequence[str]) -> dict[str, str]:
    """The checksum of each file; what is embedded, or on a hub, is known by its name."""
    files = [
        file
        for name in data
        if not name.startswith("hf:") and name.partition(":")[0] not in SPLITS
        for file in find_files(name, piped="jsonl")
    ]

    return dict.fromkeys(data, "") | {file.name: file.sha256() for file in files}


# Answers


def answers(
    task: EvaluationTask, subject: Subject, data: list[str], protocols: Sequence[Protocol]
) -> Iterator[EvaluationResult]:
    few = takes_examples(task, subject.model)
    for protocol in (
        protocols if few else [max(protocols, key=lambda each: each.shots)]
    ):  # whose result says so
        errors = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )

        bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
        with bar:
            line = bar.add_task(f"{subject.name}: {task.name}", total=None)

            def hear(done: int, all: int, bar: Progress = bar, line: Any = line) -> None:
                bar.update(line, completed=done, total=all)

            result = evaluate(task, subject, data, protocol, hear)

        yield result


def written(
    asked: Sequence[tuple[EvaluationTask, list[str]]],
    hypotheses: Path,
    models: Sequence[str],
    protocols: Sequence[Protocol],
) -> EvaluationResult:
    """Translations that are there already, against the references: the targets of pairs, or a file
    with a line each.
    """
    if models or len(asked) != 1 or asked[0][0].kind != "translation":
        raise ValueError("hypotheses: expected --task translation alone, and no model")
    if any(protocol.shots for protocol in protocols):
        raise ValueError(
            "shots: translations that are there already have no examples before them; leave it out"
        )

    task, data = asked[0]
    if not data:
        raise ValueError(
            "data: expected the references: a file with a line each, or pairs of source and target"
        )

    said = [line for file in find_files(str(hypotheses), piped="text") for _, line in lines(file)]
    first = (
        find_files(data[0], piped="text")[0] if data[0].partition(":")[0] not in SPLITS else None
    )
    plain = first is not None and first.format == "text" and len(data) == 1
    references = (
        [line for _, line in lines(first)]
        if first and plain
        else [target for _, target in open_pairs(data)]
    )
    check(said, references)
    limit = protocols[0].limit
    found = scored(said[:limit], references[:limit], protocols[0].seed, "translations as given")

    return EvaluationResult(task=task.name, model=hypotheses.name, shots=0, **found)
