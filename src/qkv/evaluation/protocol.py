"""The evaluation protocol: the model under test, few-shot settings, and reading the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, NotRequired, TypedDict

from qkv.data.sources.source import Source, open_pairs, open_rows
from qkv.evaluation.intervals import Score
from qkv.evaluation.likelihood import Progress
from qkv.evaluation.question import Question, Row, with_examples
from qkv.evaluation.task_file import KINDS, EvaluationTask
from qkv.models.model import Model
from qkv.nn.config import documented
from qkv.text import Tokenizer


class Subject(NamedTuple):
    """The model under test.

    Args:
        name: The name that reports show.
        model: The model.
        tokenizer: The model's tokenizer.

    Example:
        >>> from qkv.models import GPT, GPTConfig
        >>> from qkv.text import train
        >>> tokenizer = train("byte-pair", ["the cat sat"], 264)
        >>> config = GPTConfig(vocabulary=tokenizer.vocabulary, width=8, depth=1, heads=1)
        >>> Subject("tiny", GPT(config), tokenizer).name
        'tiny'
    """

    name: str
    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True, kw_only=True)
class ProtocolFlags:
    """What the protocol of an evaluation has beside the number of few-shot examples."""

    seed: int = 0
    """Seed of the choice of examples and of the bootstrap intervals."""
    limit: int | None = None
    """Use only the first N items of each task: rows of a table, sentence pairs, windows of a text
    (perplexity; see --window and --stride), or chunks as long as the context (masked words)."""
    examples: tuple[str, ...] = ()
    """A file to choose the examples from (default: the other rows of the data)."""
    window: int | None = None
    """Perplexity: tokens read at once (default: the context, at most 1,024)."""
    stride: int | None = None
    """Perplexity: tokens scored in each window, the others are context (default: half of the
    window)."""
    beams: int = 4
    """Translation: beam width."""


@documented
@dataclass(frozen=True, kw_only=True)
class Protocol(ProtocolFlags):
    """How a model is evaluated; two scores are comparable only under the same protocol.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> Protocol(shots=5, limit=100).seed
        0
    """

    shots: int = 0
    """Answered examples before each question."""

    def __post_init__(self) -> None:
        for name, least in (("shots", 0), ("seed", 0), ("limit", 1), ("beams", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected {least} or more, not {value}")


class Evaluation(NamedTuple):
    """One evaluation: the arguments of `evaluate`, which an evaluator of a kind receives."""

    task: EvaluationTask
    subject: Subject
    data: Sequence[str]
    protocol: Protocol
    progress: Progress

    def rows(self) -> list[Row]:
        """The rows of the data, as values by column."""
        return read_task_rows(self.task, self.data, self.protocol.limit)

    def questions(self, rows: Sequence[Row]) -> list[Question]:
        """The questions of rows, each after its few-shot examples.

        The examples are taken from the protocol's files, from the task's, or else from the data.
        """
        task, _, data, protocol, _ = self
        files = list(protocol.examples)
        if not files and task.examples:
            files = [task.beside(task.examples)]

        files = files or list(data)
        pool = read_task_rows(task, files) if protocol.shots else []

        return with_examples(
            task,
            rows,
            pool,
            ", ".join(files),
            name=", ".join(data),
            shots=protocol.shots,
            seed=protocol.seed,
        )


class Measurement(TypedDict):
    """What an evaluator returns: fields of an `EvaluationResult`."""

    rows: int
    scores: tuple[Score, ...]
    notes: tuple[str, ...]
    facts: dict[str, Any]
    random_baseline: NotRequired[float]


def supports_few_shot(task: EvaluationTask, model: Model) -> bool:
    """True if few-shot examples can precede the questions of this task."""
    if KINDS[task.kind].running_text:
        return False

    return task.kind != "translation" or model.predicts == "next"


def read_task_rows(
    task: EvaluationTask, data: Sequence[str], limit: int | None = None
) -> list[Row]:
    """The first rows of a task's data, as values by column."""
    if task.kind != "translation":
        return read_first(open_rows(data, task.columns), limit)

    usual = ("source", "target")
    columns = usual
    if len(task.columns) == 2:
        columns = (task.columns[0], task.columns[1])

    pairs = open_pairs(data, columns=None if columns == usual else columns)

    return [dict(zip(columns, pair, strict=True)) for pair in read_first(pairs, limit)]


def read_first(source: Source[Any], limit: int | None) -> list[Any]:
    return list(islice(source, limit))


# Notes


def unknown_note(tokenizer: Tokenizer, unknown: int, tokens: int) -> tuple[str, ...]:
    """A note on unknown tokens, which are easy to predict and improve the scores unduly."""
    if not unknown or tokenizer.unknown is None:
        return ()

    name = tokenizer.token(tokenizer.unknown).strip()
    return (f"{unknown:,} of {tokens:,} tokens are not in the vocabulary and are read as {name}",)


def examples_note(protocol: Protocol) -> tuple[str, ...]:
    """A note on the choice of few-shot examples."""
    if not protocol.shots:
        return ()

    return (f"examples chosen by seed {protocol.seed}",)
