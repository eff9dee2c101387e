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

from rich.console import Console

from qkv import storage
from qkv.command_line.comparison_results import ComparisonResults, Key, checksums_of
from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName
from qkv.command_line.output_checks import check_writable
from qkv.command_line.subjects import model_titles, open_subject, run_task
from qkv.command_line.user_input import note
from qkv.data.batches.labels import class_names
from qkv.data.sources.examples import open_examples
from qkv.evaluation.protocol import Protocol, Subject, read_task_rows
from qkv.evaluation.question import build_question
from qkv.evaluation.task_file import EvaluationTask, only_column, read_task, template_parts
from qkv.insight.render.figures.comparison_figure import comparison_table, draw_comparison
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

RESULTS = "results.json"
PICTURE = "comparison.png"
LIMITED = "validation.jsonl"
RUNS = "runs"
IDENTITY = ("family", "parameters", "sha256 of weights", "sha256 of tokenizer", "int8", "int4")
CHECKPOINT = 500
"""Steps between checkpoints."""
SHOTS = (0, 1, 4, 16)
EXAMPLES = ("8", "32", "128", "all")
"""The defaults; numbers that the data do not allow are left out."""
AT_THE_END = 10**9
"""Steps between validations, so that there is one only at the end."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Fine-tuning parameters, the same for every number of examples."""

    train: Trained = "everything"
    """What is trained: everything, the last layers, the head, or adapters."""
    epochs: int = 3
    """Epochs; more if the examples are few, see --steps."""
    steps: int = 100
    """Minimum number of updates, however few the examples are."""
    batch: int = 32
    """Examples per update, or all of them if there are fewer."""
    learning_rate: float | None = None
    """Peak learning rate (default: that of qkv finetune)."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "epochs", "steps", "batch")
        if self.learning_rate is not None:
            check_above_zero(self, "learning_rate")

    def epochs_of(self, examples: int) -> int:
        updates_per_epoch = math.ceil(examples / self.batch)
        return max(self.epochs, math.ceil(self.steps / updates_per_epoch))


DEFAULT_TRAINING = Training()


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare prompting with fine-tuning on the same data: a table and a figure with intervals.

    qkv compare smollm2 --task sst-2 --data train.tsv --validation dev.tsv --out runs/compared

    Each result is saved as soon as it is known: the same command continues where it stopped, and
    more shots, examples or seeds add results.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, smollm2, or minilm; a BERT is only
    fine-tuned."""
    task: str
    """sst-2, rte, or a task file (.toml) of kind classification with prompt, columns and
    classes."""
    data: tuple[str, ...]
    """A table with the task's columns: the examples for prompts and for training."""
    validation: tuple[str, ...]
    """A table with the same columns, on which both are scored."""
    out: Path
    """The folder for results.json and comparison.png."""
    shots: tuple[int, ...] = SHOTS
    """Solved examples before each question (few-shot)."""
    examples: tuple[str, ...] = EXAMPLES
    """Numbers of training examples, balanced over the classes; all for all of them."""
    seeds: int = 1
    """Choices of examples and orders of training; the mean and the spread are reported."""
    limit: int | None = None
    """Use only the first N rows of the validation data."""
    keep: bool = False
    """Keep the fine-tuned models, in the folder's runs."""
    training: Training = DEFAULT_TRAINING
    """Fine-tuning parameters."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        self.check_numbers()
        task = read_task(self.task)
        columns = columns_of(task)
        check_writable("out", self.out / RESULTS)

        # Read all data once, so that a bad row is reported before anything is computed.
        rows = count_rows(task, columns, self.data, self.validation)
        shots = possible_shots(self.shots, rows, ", ".join(self.data))
        sizes = training_sizes(self.examples, rows, len(task.choices), ", ".join(self.data))

        title = model_titles([self.model])[0]
        subject, identity = open_subject(self.model, title, self.machine, GPT, BERT)
        results = ComparisonResults.open(self.out / RESULTS, self.question(task, identity))
        validation = self.validation
        if self.limit is not None:
            validation = limited_validation(task, validation, self.limit, self.out / LIMITED)

        prompted = prompt_keys(shots, self.seeds)
        if prompted and subject.model.predicts != "next":
            note(f"{self.model}: a BERT does not predict the next token, so it is only fine-tuned")
            prompted = []

        keys = list(prompted)
        for size in sizes:
            keys += [Key("fine-tuned", size, seed) for seed in range(self.seeds)]

        try:
            for key in results.missing(prompted):
                note_progress(key, keys)
                protocol = Protocol(shots=key.examples, seed=key.seed, examples=self.data)
                results.add(key, score_prompting(task, subject, validation, protocol))

            del subject  # frees the memory for training
            for key in results.missing(keys):
                note_progress(key, keys)
                examples = None if key.examples == rows else key.examples
                results.add(key, self.score_finetuning(key, columns, validation, examples))
                if not self.keep:
                    remove_run(self.run_folder(key))
        finally:
            show_results(
                results, f"{title} on {task.name}", 1 / len(task.choices), self.out / PICTURE
            )

    def check_numbers(self) -> None:
        """Refuse bad numbers before anything is read."""
        Protocol(limit=self.limit, shots=min(self.shots, default=0))
        if under_torchrun():
            raise ValueError("compare: it trains several models in turn; start it without torchrun")
        if self.seeds < 1:
            raise ValueError(f"seeds: expected 1 or more, not {self.seeds}")
        if not self.shots and not self.examples:
            raise ValueError("shots: expected numbers of shots, of examples, or both")

    def question(self, task: EvaluationTask, identity: dict[str, Any]) -> dict[str, Any]:
        """What a comparison must have in common with the one that it continues."""
        return {
            "model": {name: identity[name] for name in IDENTITY if name in identity},
            "task": task.as_json(),
            "data": checksums_of(self.data),
            "validation": checksums_of(self.validation),
            "limit": self.limit,
            "training": asdict(self.training),
        }

    def run_folder(self, key: Key) -> Path:
        return self.out / RUNS / f"{key.examples}-{key.seed}"

    def score_finetuning(
        self, key: Key, columns: ScoreColumns, validation: tuple[str, ...], examples: int | None
    ) -> dict[str, Any]:
        """Fine-tune, and validate once, at the end.

        Choosing the best step on the validation data would overestimate the accuracy.
        """
        start = time.perf_counter()
        training = self.training
        epochs = training.epochs_of(key.examples)
        batch = min(training.batch, key.examples)
        tune = FinetuneConfig(
            model=self.model,
            task=columns.task,
            data=self.data,
            validation=validation,
            examples=examples,
            train=training.train,
            **columns._asdict(),
        )
        run = FinetuneRunConfig(
            out=self.run_folder(key),
            epochs=epochs,
            batch=batch,
            seed=key.seed,
            device=self.machine.device,
            precision=self.machine.precision,
            validate_every=AT_THE_END,
            checkpoint_every=CHECKPOINT,
            keep=1,
            log_every=50,
            resume=True,
        )
        optimizer = replace(DEFAULTS, learning_rate=training.learning_rate)
        tuning = finetune(tune, optimizer, run, console=Console(stderr=True, highlight=False))
        if tuning is None or not tuning.outcome.finished:
            note("the same command continues from here")
            raise KeyboardInterrupt

        assert tuning.confusion is not None

        return {
            "accuracy": tuning.measured["accuracy"],
            "rows": int(tuning.confusion.sum()),
            "seconds": time.perf_counter() - start,
            "epochs": epochs,
            "batch": batch,
            "measured": tuning.measured,
            "labels": tuning.labels,
            "confusion": tuning.confusion.tolist(),
        }


# Data


class ScoreColumns(NamedTuple):
    """The columns of a task that fine-tuning reads."""

    text: str
    pair: str | None
    label: str

    @property
    def task(self) -> Literal["classify", "pair"]:
        if self.pair is None:
            return "classify"

        return "pair"


def columns_of(task: EvaluationTask) -> ScoreColumns:
    """One or two text columns in the order of the prompt, and the column of the class."""
    label = None
    if task.answer:
        label = only_column(task.answer)

    if task.kind != "classification" or isinstance(task.choices, str) or label is None:
        raise ValueError(
            f"task: expected one with classes, such as sst-2 or rte, not {task.name}, "
            f"of kind {task.kind}"
        )

    texts = list(dict.fromkeys(column for _, column in template_parts(task.template) if column))
    if not 1 <= len(texts) <= 2:
        raise ValueError(
            f"task: {task.name}: expected one or two columns in its template, "
            f"not {', '.join(texts)}"
        )
    if set(task.columns) != {*texts, label}:
        raise ValueError(
            f"task: {task.name}: expected the same classes for every row, not {task.choices}"
        )

    text, *pair = texts
    return ScoreColumns(text, next(iter(pair), None), label)


def count_rows(
    task: EvaluationTask, columns: ScoreColumns, data: Sequence[str], validation: Sequence[str]
) -> int:
    """The number of training rows, after every row was checked for both methods."""
    training = list(open_examples(data, columns.task, **columns._asdict()))
    validating = list(open_examples(validation, columns.task, **columns._asdict()))
    names = [name for name in columns if name is not None]

    for example in itertools.chain(training, validating):
        row = dict(zip(names, (*example.texts, example.label), strict=True))
        build_question(task, row, example.where)

    class_names(training, validating, columns.task)

    return len(training)


def possible_shots(shots: tuple[int, ...], rows: int, name: str) -> tuple[int, ...]:
    """Those of the defaults for which there are enough rows; the user's own numbers must fit."""
    if shots == SHOTS:
        return tuple(number for number in shots if number <= rows)
    if max(shots, default=0) > rows:
        raise ValueError(f"shots: {name} has only {rows:,} rows, not {max(shots):,}")

    return shots


def training_sizes(examples: Sequence[str], rows: int, classes: int, name: str) -> list[int]:
    """The numbers of training examples, two per class or more."""
    sizes = set()
    for text in examples:
        if text == "all":
            sizes.add(rows)
        elif text.isdecimal() and int(text):
            sizes.add(int(text))
        else:
            raise ValueError(f"examples: expected 1 or more, or all, not {text!r}")

    least = 2 * classes
    if examples == EXAMPLES:
        return sorted(size for size in sizes if least <= size <= rows)
    if max(sizes, default=0) > rows:
        raise ValueError(f"examples: {name} has only {rows:,} rows, not {max(sizes):,}")
    if min(sizes, default=least) < least:
        raise ValueError(
            f"examples: {min(sizes)} are too few for {classes} classes; expected {least} or more"
        )

    return sorted(sizes)


def limited_validation(
    task: EvaluationTask, validation: tuple[str, ...], limit: int, path: Path
) -> tuple[str, ...]:
    """Write the first rows of the validation data to a file, so that both methods use the same."""
    rows = read_task_rows(task, validation, limit)
    storage.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return (str(path),)


def prompt_keys(shots: Sequence[int], seeds: int) -> list[Key]:
    """The measurements of prompting; zero shots do not depend on the seed."""
    keys = []
    for number in sorted(set(shots)):
        for seed in range(seeds if number else 1):
            keys.append(Key("prompted", number, seed))

    return keys


# Measurements


def score_prompting(
    task: EvaluationTask, subject: Subject, data: Sequence[str], protocol: Protocol
) -> dict[str, Any]:
    """The accuracy of a prompted model."""
    (result,) = run_task(task, subject, list(data), [protocol])
    return {
        "accuracy": result.scores[0].value,
        "rows": result.rows,
        "seconds": result.seconds,
        "notes": result.notes,
    }


def remove_run(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # the folder of all runs stays if it holds another one
        folder.parent.rmdir()


def note_progress(key: Key, keys: Sequence[Key]) -> None:
    note(f"{keys.index(key) + 1} of {len(keys)}: {key}")


def show_results(
    results: ComparisonResults, title: str, random_accuracy: float, picture: Path
) -> None:
    """Print the table and draw the figure of the results so far."""
    if not results.points:
        return

    compared = results.compared()
    Console(highlight=False).print(comparison_table(compared, random_accuracy))
    rows = next(iter(results.points.values()))["rows"]
    seeds = max(len(row.accuracies) for row in compared)
    caption = f"{rows:,} test rows; bars are 95% intervals"
    if seeds > 1:
        caption += f"; a dot for each of {seeds} seeds"

    print(draw_comparison(compared, picture, title, caption, random_accuracy))
