"""Evaluation tasks as small TOML files: the prompt template, the choices and the metrics.

name = "sst-2"
kind = "classification"
template = "Review: {sentence}\\nSentiment:"      # {sentence} is a column of the data
answer = "{label}"
choices = { 0 = "negative", 1 = "positive" }
"""

from __future__ import annotations

import difflib
import string
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from qkv.nn.config import documented

EMBEDDED = Path(__file__).parent / "tasks"

Normalise = Literal["none", "characters", "bytes", "tokens"]


class TaskKind(NamedTuple):
    """What a kind of task needs, and what it reports."""

    required: tuple[str, ...]
    """Fields that its task files must have."""
    metrics: tuple[str, ...]
    """Names of its scores."""
    running_text: bool = False
    """It scores running text instead of the rows of a table."""


KINDS: dict[str, TaskKind] = {
    "last word": TaskKind(("template",), ("accuracy", "perplexity")),
    "choice": TaskKind(("template", "choices", "answer"), ("accuracy",)),
    "cloze": TaskKind(("template", "choices", "answer"), ("accuracy",)),
    "minimal pair": TaskKind(("choices",), ("accuracy",)),
    "classification": TaskKind(("template", "choices", "answer"), ("accuracy",)),
    "line": TaskKind(("template", "answer"), ("accuracy",)),
    "translation": TaskKind(("template", "answer"), ("BLEU", "chrF")),
    "perplexity": TaskKind(
        ("template",), ("perplexity", "bits per character", "bits per byte"), running_text=True
    ),
    "masked words": TaskKind(("template",), ("accuracy", "perplexity"), running_text=True),
}
"""The kinds of tasks; `add_kind` adds one."""


@documented
@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """An evaluation task: how a row of data becomes a question, and how the answer is scored.

    Example:
        >>> task = EvaluationTask(
        ...     name="capitals", kind="line", template="{country}:", answer="{city}"
        ... )
        >>> task.columns
        ('country', 'city')
        >>> task.metrics
        ('accuracy',)
    """

    name: str
    """Name of the task, as in the table of results."""
    kind: str
    """How questions are asked and scored."""
    template: str = ""
    """The prompt of a row; {column} stands for a column of the data. Spaces around a column's text
    are removed.
    """
    answer: str = ""
    """The gold label: the text, the label or the index of the correct choice. For a translation,
    the reference. For a line, the expected line, or a column with a list of accepted lines, the
    first of which is shown in examples."""
    choices: str | tuple[str, ...] | Mapping[str, str] = ()
    """The column with a list of options, or their templates (for a minimal pair the good sentence
    first), or texts by label.
    """
    description: str = ""
    """Text before the examples."""
    separator: str = "\n\n"
    """Text between description, examples and question."""
    joint: str = " "
    """Text between a prompt and its answer."""
    blank: str = "XXXXX"
    """For a cloze: the sign that the choices replace."""
    normalise: tuple[Normalise, ...] = ("none",)
    """What the log-likelihood of a choice is divided by; one score for each."""
    metric: tuple[str, ...] = ()
    """The metrics to report; by default all metrics of the kind."""
    examples: str = ""
    """A file of few-shot examples beside the task file; by default the other rows of the data."""
    data: str = ""
    """A data file beside the task file, used where the caller names none."""
    origin: str = ""
    """The file this task was read from."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to report."""
        return self.metric or KINDS[self.kind].metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the data must have, in the order of their first use."""
        templates = [self.template, self.answer]
        columns: list[str] = []
        if isinstance(self.choices, str):
            columns.append(self.choices)
        elif isinstance(self.choices, Mapping):
            templates += self.choices.values()
        else:
            templates += self.choices

        for template in templates:
            columns += [column for _, column in template_parts(template) if column]

        return tuple(dict.fromkeys(columns))

    def beside(self, name: str) -> str:
        """The path of a file that the task names, relative to the task file."""
        return str(Path(self.origin).parent / name)

    def as_json(self) -> dict[str, Any]:
        """The fields of the task as JSON values, without its origin."""
        values = asdict(self)
        del values["origin"]

        return values


def read_task(name: str | Path) -> EvaluationTask:
    """Read an embedded task by its name, or a task file.

    Args:
        name: The name of an embedded task such as `lambada`, or the path of a .toml file.

    Returns:
        The task, with every field checked.

    Raises:
        ValueError: If there is no such task, or a field of the file is wrong.
        FileNotFoundError: If the .toml file does not exist.

    Example:
        >>> task = read_task("sst-2")
        >>> task.kind, task.choices
        ('classification', {'0': 'negative', '1': 'positive'})
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = embedded_path(str(name))
    if not path.is_file():
        raise FileNotFoundError(f"task: no such file: {path}")

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None

    return build_task(values, str(path))


def embedded_path(name: str) -> Path:
    """The file of an embedded task."""
    known = sorted(path.stem for path in EMBEDDED.glob("*.toml"))
    if name in known:
        return EMBEDDED / f"{name}.toml"

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise ValueError(
        f"task: there is no task {name!r}{hint} Expected {', '.join(known)} or a .toml file"
    )


def build_task(values: Mapping[str, Any], origin: str) -> EvaluationTask:
    """A task from the values of its file, checked; an error names the file and the field."""
    check_field_names(values, origin)
    kind = values["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{origin}: kind: expected one of {', '.join(KINDS)}, not {kind!r}")

    for name in KINDS[kind].required:
        if name not in values:
            raise ValueError(
                f"{origin}: {name}: this field is missing; a task of kind {kind!r} needs it"
            )

    checked = {name: check_value(name, value, origin) for name, value in values.items()}
    task = EvaluationTask(**checked, origin=origin)
    check_task(task)

    return task


def check_field_names(values: Mapping[str, Any], origin: str) -> None:
    """Raise if a field is unknown, or one without a default is missing."""
    known = {field.name: field for field in fields(EvaluationTask)}
    del known["origin"]

    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"expected {', '.join(known)}"
            if close:
                hint = f"did you mean {close[0]}?"

            raise ValueError(f"{origin}: {name}: there is no such field; {hint}")

    for name, field in known.items():
        if field.default is MISSING and name not in values:
            raise ValueError(f"{origin}: {name}: this field is missing")


def check_value(name: str, value: Any, origin: str) -> Any:
    """The value of a field, with lists as tuples; raises if it is of the wrong type."""
    if name in ("normalise", "metric") and isinstance(value, str):
        value = (value,)

    texts: Iterable[Any] = (value,)
    if name in ("normalise", "metric", "choices"):
        if isinstance(value, dict):
            texts = value.values()
        elif isinstance(value, list | tuple):
            texts = value = tuple(value)

    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{origin}: {name}: expected text in quotation marks, not {value!r}")

    if name == "normalise":
        check_normalise(value, origin)

    return value


def check_normalise(value: Iterable[str], origin: str) -> None:
    known = get_args(Normalise)
    if not value:
        raise ValueError(
            f"{origin}: normalise: expected one or more of {', '.join(known)}, not an empty list"
        )

    unknown = set(value) - set(known)
    if unknown:
        raise ValueError(
            f"{origin}: normalise: expected {', '.join(known)}, not {', '.join(unknown)}"
        )


def check_task(task: EvaluationTask) -> None:
    """Raise if the fields of a task do not fit together."""
    metrics = KINDS[task.kind].metrics
    for metric in task.metric:
        if metric not in metrics:
            raise ValueError(
                f"{task.origin}: metric: expected {', '.join(metrics)}, not {metric!r}"
            )

    check_choices(task)
    if task.kind == "cloze" and not task.blank:
        raise ValueError(f"{task.origin}: blank: expected the sign that the choices replace")

    try:
        columns = task.columns
    except ValueError as error:
        raise ValueError(f"{task.origin}: {error}") from None

    if not columns:
        raise ValueError(
            f"{task.origin}: template: expected a {{column}} of the data in it, "
            f"not {task.template!r}"
        )


def check_choices(task: EvaluationTask) -> None:
    listed = isinstance(task.choices, tuple)
    if task.kind == "minimal pair" and not (listed and len(task.choices) == 2):
        raise ValueError(f"{task.origin}: choices: expected two templates, the good sentence first")

    if "choices" not in KINDS[task.kind].required or isinstance(task.choices, str):
        return
    if len(task.choices) < 2:
        raise ValueError(f"{task.origin}: choices: expected two or more")


# Templates


def template_parts(template: str) -> Iterator[tuple[str, str | None]]:
    """The pieces of a template: text, and the column after it; {{ and }} are literal braces."""
    try:
        for text, column, form, conversion in string.Formatter().parse(template):
            if column == "" or form or conversion:
                raise ValueError(
                    "expected the name of a column between the brackets and nothing else"
                )

            yield text, column
    except ValueError as error:
        raise ValueError(f"template: {template!r}: {error}") from None


def only_column(template: str) -> str | None:
    """The column of a template that is one column and nothing else; None for other templates."""
    (before, column), *others = template_parts(template)
    if before or others:
        return None

    return column


def fill(template: str, row: Mapping[str, Any]) -> str:
    """A template with the values of a row in place of its columns."""
    text = ""
    for literal, column in template_parts(template):
        text += literal
        if column is not None:
            text += str(row[column]).strip()

    return text
