"""qkv compare: prompting against fine-tuning, on the same data."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro
from rich.console import Console

from qkv import storage
from qkv.command_line.model_opening import Machine, ModelName, check_place, note
from qkv.commands.evaluate import answers, fingerprints, opened, titles
from qkv.data.batches.labels import labels_of
from qkv.data.sources.examples import open_examples
from qkv.evaluation import report
from qkv.evaluation.evaluate import Protocol, Subject, rows_of
from qkv.evaluation.intervals import wilson
from qkv.evaluation.question import question
from qkv.evaluation.task_file import EvaluationTask, only_column, parts, read_task
from qkv.insight.render.figures.comparison_figure import (
    Compared,
    Way,
    comparison_table,
    draw_comparison,
)
from qkv.models import BERT, GPT
from qkv.nn.config import check_above_zero, check_at_least_one
from qkv.training.finetune.finetune import finetune
from qkv.training.finetune.finetune_config import (
    DEFAULTS,
    FinetuneConfig,
    FinetuneRunConfig,
    Trained,
)
from qkv.training.systems.distributed import under_torchrun

RESULTS, PICTURE, LIMITED, RUNS = "results.json", "comparison.png", "validation.jsonl", "runs"
WHO = ("family", "parameters", "sha256 of weights", "sha256 of tokenizer", "int8")
CHECKPOINT = 500  # steps that are not lost when it is stopped; fewer are soon made again
SHOTS, EXAMPLES = (0, 1, 4, 16), ("8", "32", "128", "all")  # as far as there are so many
AT_THE_END = 10**9  # steps between validations, so that there is one only at the end


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is fine-tuned, whatever the number of examples."""

    train: Trained = "everything"
    """How much is trained: everything, the last layers, the head, or adapters."""
    epochs: int = 3
    """How often each example is seen; of few examples more often, see steps."""
    steps: int = 100
    """At least so many updates, however few the examples are."""
    batch: int = 32
    """Examples of one update; all of them where there are fewer."""
    learning_rate: float | None = None
    """The highest; what qkv finetune takes unless given."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "epochs", "steps", "batch")
        if self.learning_rate is not None:
            check_above_zero(self, "learning_rate")

    def epochs_of(self, examples: int) -> int:
        return max(self.epochs, math.ceil(self.steps / math.ceil(examples / self.batch)))


class Key(NamedTuple):
    """What is measured once: a way, with so many examples, chosen by a seed."""

    way: Way
    examples: int
    seed: int

    def __str__(self) -> str:
        return f"{self.way} with {self.examples:,} example{'' if self.examples == 1 else 's'}, seed {self.seed}"


def run(
    model: ModelName,
    task: str,
    data: tuple[str, ...],
    validation: tuple[str, ...],
    out: Path,
    shots: tuple[int, ...] = SHOTS,
    examples: tuple[str, ...] = EXAMPLES,
    seeds: int = 1,
    limit: int | None = None,
    keep: bool = False,
    training: tyro.conf.OmitArgPrefixes[Training] = Training(),  # noqa: B008 - tyro reads the defaults
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Compare prompting with fine-tuning on the same data: one table, one picture, an interval on
    every number.

    qkv compare smollm2 --task sst-2 --data train.tsv --validation dev.tsv --out runs/compared

    Each number is kept as soon as it is known: the same command again goes on where it stopped, and
    with more shots, examples or seeds it adds those.

    Args: model: The folder of a run or of transformers, a GGUF file, smollm2, or minilm: a BERT is
        only fine-tuned. task: sst-2, rte, or a task file (.toml) of kind classification: the
        prompt, the columns, the classes. data: What is learned from, by examples in the prompt or
        by training: a table with the task's columns. validation: What both are asked: a table like
        it. out: The folder for results.json and comparison.png. shots: How many answered examples
        come before a question. examples: How many examples are trained on, as many of each class;
        all for all there are. seeds: So many choices of examples and orders of training; the mean
        and its spread are told. limit: Ask only the first so many rows of the validation. keep:
        Keep the fine-tuned models, too, in the folder's runs. training: How it is fine-tuned.
        machine: Where and how it computes.
    """
    Protocol(limit=limit, shots=min(shots, default=0))  # says what is wrong before anything is read
    if under_torchrun():
        raise ValueError(
            "compare: it trains many models one after the other; start it without torchrun"
        )
    if seeds < 1:
        raise ValueError(f"seeds: expected 1 or more, not {seeds}")
    if not shots and not examples:
        raise ValueError("shots: expected numbers of shots, of examples, or both")

    prompt = read_task(task)
    columns = columns_of(prompt)
    check_place("out", out / RESULTS)
    rows = checked(prompt, columns, data, validation)
    shots = tuple(each for each in shots if shots != SHOTS or each <= rows)
    if max(shots, default=0) > rows:
        raise ValueError(f"shots: {', '.join(data)} has only {rows:,} rows, not {max(shots):,}")

    wanted = numbers(examples, rows, len(prompt.choices), ", ".join(data))
    title = titles([model])[0]
    subject, who = opened(model, title, machine, GPT, BERT)
    found = ComparisonResults.begun(out / RESULTS, {
        "model": {name: who[name] for name in WHO}, "task": prompt.as_json(), "data": checksums(data),
        "validation": checksums(validation), "limit": limit, "training": asdict(training),
    })  # fmt: skip
    if limit is not None:  # both ways are asked the very same rows
        some = rows_of(prompt, validation, limit)
        storage.write_text(
            out / LIMITED, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        )
        validation = (str(out / LIMITED),)

    prompted = [
        Key("prompted", each, seed)
        for each in sorted(set(shots))
        for seed in range(seeds if each else 1)
    ]
    if prompted and not isinstance(subject.model, GPT):
        note(f"{model}: a BERT says no next word, so it cannot be prompted; it is only fine-tuned")
        prompted = []

    keys = [*prompted, *(Key("fine-tuned", each, seed) for each in wanted for seed in range(seeds))]

    try:
        for key in found.missing(prompted):
            say(key, keys)
            protocol = Protocol(shots=key.examples, seed=key.seed, examples=data)
            found.add(key, by_prompt(prompt, subject, validation, protocol))

        del subject  # before training needs the memory
        for key in found.missing(keys):
            say(key, keys)
            tune = FinetuneConfig(
                model=model, task=columns.task, data=data, validation=validation,
                examples=None if key.examples == rows else key.examples, train=training.train, **columns._asdict(),
            )  # fmt: skip
            folder = out / RUNS / f"{key.examples}-{key.seed}"
            found.add(key, by_training(tune, training, key, folder, machine))
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # another one's run may be in it
                    folder.parent.rmdir()
    finally:
        tell(found, f"{title} on {prompt.name}", 1 / len(prompt.choices), out / PICTURE)


# What is asked


class ScoreColumns(NamedTuple):
    text: str
    pair: str | None
    label: str

    @property
    def task(self) -> Literal["classify", "pair"]:
        return "classify" if self.pair is None else "pair"


def columns_of(task: EvaluationTask) -> ScoreColumns:
    """Those that fine-tuning reads: one text or two in the order of the prompt, and the class."""
    label = only_column(task.answer) if task.answer else None
    if task.kind != "classification" or isinstance(task.choices, str) or label is None:
        raise ValueError(
            f"task: expected one with classes, such as sst-2 or rte, not {task.name}, of kind {task.kind}"
        )

    texts = list(dict.fromkeys(column for _, column in parts(task.template) if column))
    if not 1 <= len(texts) <= 2:
        raise ValueError(
            f"task: {task.name}: expected one or two columns in its template, not {', '.join(texts)}"
        )
    if set(task.columns) != {*texts, label}:
        raise ValueError(
            f"task: {task.name}: expected classes that are the same for every row, not {task.choices}"
        )

    return ScoreColumns(texts[0], texts[1] if len(texts) == 2 else None, label)


def checked(
    task: EvaluationTask, columns: ScoreColumns, data: Sequence[str], validation: Sequence[str]
) -> int:
    """How many rows there are to learn from, once every row is known to be of use to both ways."""
    read = [
        list(open_examples(files, columns.task, **columns._asdict()))
        for files in (data, validation)
    ]
    for example in itertools.chain(*read):
        row = dict(zip(filter(None, columns), (*example.texts, example.label), strict=True))
        question(task, row, example.where)

    labels_of(read[0], read[1], columns.task)

    return len(read[0])


def numbers(examples: Sequence[str], rows: int, classes: int, name: str) -> list[int]:
    """How many examples to train on; a class is not learned from one."""
    made, least = set(), 2 * classes
    for each in examples:
        if each != "all" and not (each.isdecimal() and int(each)):
            raise ValueError(f"examples: expected 1 or more, or all, not {each!r}")

        made.add(rows if each == "all" else int(each))

    if examples == EXAMPLES:
        return sorted(each for each in made if least <= each <= rows)
    if max(made, default=0) > rows:
        raise ValueError(f"examples: {name} has only {rows:,} rows, not {max(made):,}")
    if min(made, default=least) < least:
        raise ValueError(
            f"examples: {min(made)} are too few for {classes} classes; expected {least} or more"
        )

    return sorted(made)


def checksums(data: Sequence[str]) -> list[str]:
    """Of the files, wherever they lie; what is on a hub is known by its name."""
    return [
        content or name
        for name, content in fingerprints(data).items()
        if content or name.startswith("hf:")
    ]


# What is found


@dataclass
class ComparisonResults:
    """All that is known by now, on the disk as soon as it is."""

    path: Path
    asked: dict[str, Any]
    points: dict[Key, dict[str, Any]]

    @classmethod
    def begun(cls, path: Path, asked: dict[str, Any]) -> ComparisonResults:
        """With what a run before this one has found, if it asked the same."""
        if not path.exists():
            return cls(path, asked, {})

        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            points = {
                Key(**{name: point.pop(name) for name in Key._fields}): point
                for point in before["points"]
            }
            old = before["asked"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"out: {path} holds no comparison that can be gone on with; name another folder"
            ) from None

        for name, value in json.loads(json.dumps(asked)).items():
            if old.get(name) != value:
                raise ValueError(
                    f"out: {path.parent} holds a comparison with another {name}; name another folder"
                )

        return cls(path, asked, points)

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        return [key for key in keys if key not in self.points]

    def add(self, key: Key, point: dict[str, Any]) -> None:
        self.points[key] = point
        self.write()

    def write(self) -> None:
        points = [key._asdict() | point for key, point in sorted(self.points.items())]
        compared = [
            each._asdict() | {"mean": each.mean, "spread": each.spread} for each in self.compared()
        ]
        whole = {"compared": compared, "points": points, "asked": self.asked, **report.made_with()}
        report.write(self.path, whole)

    def compared(self) -> list[Compared]:
        """Each way with each number of examples, over all seeds."""
        made = []
        for way, examples in sorted({(key.way, key.examples) for key in self.points}):
            own = [
                point for key, point in sorted(self.points.items()) if key[:2] == (way, examples)
            ]
            accuracies, rows = tuple(point["accuracy"] for point in own), own[0]["rows"]
            ends = wilson(min(rows, sum(accuracies) / len(own) * rows), rows)
            made.append(Compared(way, examples, accuracies, *ends))

        return made


def by_prompt(
    task: EvaluationTask, subject: Subject, data: Sequence[str], protocol: Protocol
) -> dict[str, Any]:
    (result,) = answers(task, subject, list(data), [protocol])
    score = result.scores[0]
    return {
        "accuracy": score.value,
        "rows": result.rows,
        "seconds": result.seconds,
        "said": result.said,
    }


def by_training(
    tune: FinetuneConfig, training: Training, key: Key, folder: Path, machine: Machine
) -> dict[str, Any]:
    """Asked once, at the end: weights that were chosen by what is asked would look better than they
    are.
    """
    begin, epochs, batch = (
        time.perf_counter(),
        training.epochs_of(key.examples),
        min(training.batch, key.examples),
    )
    run = FinetuneRunConfig(
        out=folder, epochs=epochs, batch=batch, seed=key.seed, device=machine.device, precision=machine.precision,
        validate_every=AT_THE_END, checkpoint_every=CHECKPOINT, keep=1, log_every=50, resume=True,
    )  # fmt: skip
    how = replace(DEFAULTS, learning_rate=training.learning_rate)
    tuning = finetune(tune, how, run, console=Console(stderr=True, highlight=False))
    if tuning is None or not tuning.outcome.finished:
        note("the same command goes on from here")
        raise KeyboardInterrupt

    assert tuning.confusion is not None
    seconds, rows = time.perf_counter() - begin, int(tuning.confusion.sum())

    return {
        "accuracy": tuning.measured["accuracy"], "rows": rows, "seconds": seconds, "epochs": epochs, "batch": batch,
        "measured": tuning.measured, "labels": tuning.labels, "confusion": tuning.confusion.tolist(),
    }  # fmt: skip


def say(key: Key, keys: Sequence[Key]) -> None:
    note(f"{keys.index(key) + 1} of {len(keys)}: {key}")


def tell(found: ComparisonResults, title: str, chance: float, picture: Path) -> None:
    """What is known, also where the rest could not be found."""
    if not found.points:
        return

    compared = found.compared()
    Console(highlight=False).print(comparison_table(compared, chance))
    rows, seeds = (
        next(iter(found.points.values()))["rows"],
        max(len(each.accuracies) for each in compared),
    )
    below = f"{rows:,} rows asked; bars are 95% intervals" + (
        f"; a dot for each of {seeds} seeds" if seeds > 1 else ""
    )
    print(draw_comparison(compared, picture, title, below, chance))
