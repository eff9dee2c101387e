"""qkv evaluate: scores of one or several models in one or several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.artifact import checksum
from qkv.commands.opening import Machine, open_model
from qkv.data.files import find_files
from qkv.data.lines import lines
from qkv.data.source import SPLITS, open_pairs
from qkv.evaluation import report
from qkv.evaluation.evaluate import Protocol, Result, Subject, evaluate, scored
from qkv.evaluation.task import Task, read_task
from qkv.insight import scores
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.models.build import family


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

    qkv evaluate runs/a runs/b --task lambada=lambada.jsonl --task hellaswag=valid.jsonl --out scores.json

    qkv evaluate smollm2 --task sst-2 --data dev.tsv --examples train.tsv --shots 0 1 5

    qkv evaluate runs/mine --task perplexity --data my.txt --stride 256

    qkv evaluate runs/translator --task translation --data test.en test.de

    qkv evaluate --task translation --hypotheses said.de --data test.de

    Args:
        models: Folders of runs or of transformers, GGUF files, or smollm2.
        task: lambada, hellaswag, cbt, blimp, sst-2, rte, translation, perplexity; agreement and last-word have small
            data of their own; or a task file (.toml). NAME=FILE says which data it is asked of.
        data: The data of the task that was given without =FILE; of several such tasks, one file each, in order.
        shots: How many answered examples come before a question; several numbers for several scores.
        seed: Chooses the examples, and draws for the intervals.
        limit: Only the first so many rows (or documents).
        examples: A file that the examples are chosen from; the other rows of the data unless given.
        window: Perplexity: how many tokens are read at once; the context, or 1,024, whichever is less.
        stride: Perplexity: how many tokens of a window are scored, the rest being context; half of the window.
        beams: Translation: how many translations are followed side by side.
        hypotheses: Translations that are there already, a line each, to be scored without a model.
        out: Write all results, and what is needed to repeat them, into this JSON file.
        plot: Draw the scores into this .png, .svg or .pdf file.
        machine: Where and how it computes.
    """
    asked = paired([(name, read_task(name), given) for name, given in map(named, task)], data)
    protocol = Protocol(seed=seed, limit=limit, examples=examples, window=window, stride=stride, beams=beams)
    protocols = [replace(protocol, shots=number) for number in dict.fromkeys(shots)]
    if not protocols:
        raise ValueError("shots: expected one number or more")
    if plot is not None:
        scores.check_place(plot)
    told: dict[str, Any] = {}
    if hypotheses is not None:
        results = [written(asked, hypotheses, models, protocol)]
    else:
        if not models:
            raise ValueError("models: expected one model or more, such as runs/mine or smollm2")
        results = []
        for name, title in zip(dict.fromkeys(models), titles(list(dict.fromkeys(models))), strict=True):
            subject = Subject(title, *open_model(name, machine, GPT, BERT, Transformer, RNN))
            told[title] = {"path": name, **identity(subject)}
            results += [result for each, given in asked for result in answers(each, subject, given, protocols)]
            del subject  # before the next one needs the memory
    console = Console(highlight=False)
    console.print(report.table(results))
    for line in report.notes(results):
        console.print(line, style="dim", markup=False, soft_wrap=True)
    files = {each.name: fingerprints(given or [each.beside(each.data)]) for each, given in asked}
    how = asdict(protocol) | {"shots": [each.shots for each in protocols]} | asdict(machine)
    found = report.as_json(results, [each for each, _ in asked], files, told, how)
    if out is not None:
        report.write(out, found)
    if plot is not None:
        scores.plot(found, plot)


# What was asked


def named(task: str) -> tuple[str, list[str]]:
    """A task's name and, after =, its data."""
    name, equals, files = task.partition("=")
    if equals and not all(files.split(",")):
        raise ValueError(f"task: expected NAME=FILE or NAME=FILE,FILE, not {task!r}")
    return name, files.split(",") if equals else []


def paired(tasks: Sequence[tuple[str, Task, list[str]]], data: Sequence[str]) -> list[tuple[Task, list[str]]]:
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
    of = {name: [each] for name, each in zip(waiting, data, strict=False)} if len(waiting) > 1 else {}
    return [(task, given or of.get(name, [] if of else list(data))) for name, task, given in tasks]


def titles(models: Sequence[str]) -> list[str]:
    """What tells them apart: the last part of a path where that is enough."""
    short = [Path(name).name for name in models]
    return [one if short.count(one) == 1 and one else name for one, name in zip(short, models, strict=True)]


def identity(subject: Subject) -> dict[str, Any]:
    _, model, tokenizer = subject
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


def answers(task: Task, subject: Subject, data: list[str], protocols: Sequence[Protocol]) -> list[Result]:
    few = task.kind not in ("perplexity",) and not (task.kind == "translation" and not isinstance(subject.model, GPT))
    results = []
    for protocol in protocols if few else [replace(protocols[0], shots=0)]:
        errors = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
        with bar:
            line = bar.add_task(f"{subject.name}: {task.name}", total=None)

            def hear(done: int, all: int, bar: Progress = bar, line: Any = line) -> None:
                bar.update(line, completed=done, total=all)

            results.append(evaluate(task, subject, data, protocol, hear))
    return results


def written(
    asked: Sequence[tuple[Task, list[str]]], hypotheses: Path, models: Sequence[str], protocol: Protocol
) -> Result:
    """Translations that are there already, against the references: the targets of pairs, or a file with a line each."""
    if models or len(asked) != 1 or asked[0][0].kind != "translation":
        raise ValueError("hypotheses: expected --task translation alone, and no model")
    task, data = asked[0]
    if not data:
        raise ValueError("data: expected the references: a file with a line each, or pairs of source and target")
    said = [line for file in find_files(str(hypotheses), piped="text") for _, line in lines(file)]
    first = find_files(data[0], piped="text")[0] if data[0].partition(":")[0] not in SPLITS else None
    plain = first is not None and first.format == "text" and len(data) == 1
    references = [line for _, line in lines(first)] if first and plain else [target for _, target in open_pairs(data)]
    found = scored(said, references, protocol.seed, "translations as given")
    return Result(task=task.name, model=hypotheses.name, shots=0, **found)
