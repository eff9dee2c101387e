"""A task is a small TOML file: what is said before the question, how a row of data becomes one, how
it is scored.

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
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

EMBEDDED = Path(__file__).parent / "tasks"

Kind = Literal[
    "last word", "choice", "cloze", "minimal pair", "classification", "line", "translation", "perplexity",
    "masked words",
]  # fmt: skip
TEXTS: tuple[Kind, ...] = ("perplexity", "masked words")
"""Asked of texts, not of the rows of a table."""
Normalise = Literal["none", "characters", "bytes", "tokens"]

REQUIRED: dict[Kind, tuple[str, ...]] = {
    "last word": ("template",),
    "choice": ("template", "choices", "answer"),
    "cloze": ("template", "choices", "answer"),
    "minimal pair": ("choices",),
    "classification": ("template", "choices", "answer"),
    "line": ("template", "answer"),
    "translation": ("template", "answer"),
    "perplexity": ("template",),
    "masked words": ("template",),
}
METRICS: dict[Kind, tuple[str, ...]] = {
    "last word": ("accuracy", "perplexity"),
    "choice": ("accuracy",),
    "cloze": ("accuracy",),
    "minimal pair": ("accuracy",),
    "classification": ("accuracy",),
    "line": ("accuracy",),
    "translation": ("BLEU", "chrF"),
    "perplexity": ("perplexity", "bits per character", "bits per byte"),
    "masked words": ("accuracy", "perplexity"),
}


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    name: str
    kind: Kind
    template: str = ""
    """The text of a row; {column} stands for a column of the data. Spaces around a column's text
    are left out.
    """
    answer: str = ""
    """Which choice is right: its text, its label or its number from 0. In a translation: the
    reference. Of a line: what it should say, or the column with a list of all that is accepted, the
    first one for examples."""
    choices: str | tuple[str, ...] | Mapping[str, str] = ()
    """The column with a list of them, or their templates (of a minimal pair the good one first), or
    texts by label.
    """
    description: str = ""
    """Said before the examples."""
    separator: str = "\n\n"
    """Between description, examples and question."""
    joint: str = " "
    """Between a text and its answer."""
    blank: str = "XXXXX"
    """In a cloze: what the choices are put in place of."""
    normalise: tuple[Normalise, ...] = ("none",)
    """What a choice's log-probability is divided by; one score for each."""
    metric: tuple[str, ...] = ()
    """All that the kind has unless given."""
    examples: str = ""
    """A file of examples for few-shot, beside the task's; the other rows of the data unless given.
    """
    data: str = ""
    """A file beside the task's that is asked unless --data names another."""
    origin: str = ""
    """The file this was read from."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.metric or METRICS[self.kind]

    @property
    def columns(self) -> tuple[str, ...]:
        """What must be in the data, in the order in which it is first asked for."""
        templates = [self.template, self.answer]
        found: list[str] = []
        if isinstance(self.choices, str):
            found.append(self.choices)
        else:
            templates += (
                self.choices.values() if isinstance(self.choices, Mapping) else self.choices
            )

        found += [column for template in templates for _, column in parts(template) if column]

        return tuple(dict.fromkeys(found))

    def beside(self, name: str) -> str:
        """A file that the task names: beside it, unless its name leads elsewhere."""
        return str(Path(self.origin).parent / name)

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "origin"}


def read_task(name: str | Path) -> EvaluationTask:
    """One of the embedded tasks by its name, or a .toml file."""
    path = Path(name)
    if path.suffix != ".toml":
        known = sorted(each.stem for each in EMBEDDED.glob("*.toml"))
        if str(name) not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            meant = f"; did you mean {close[0]}?" if close else "."
            raise ValueError(
                f"task: there is no task {str(name)!r}{meant} Expected {', '.join(known)} or a .toml file"
            )

        path = EMBEDDED / f"{name}.toml"

    if not path.is_file():
        raise FileNotFoundError(f"task: no such file: {path}")

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None

    return task_of(values, str(path))


def task_of(values: Mapping[str, Any], origin: str) -> EvaluationTask:
    """Checked field by field: an error names the file and the field."""
    known = {field.name: field for field in fields(EvaluationTask) if field.name != "origin"}
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(known)}"
            raise ValueError(f"{origin}: {name}: there is no such field; {hint}")

    for name, field in known.items():
        if field.default is MISSING and name not in values:
            raise ValueError(f"{origin}: {name}: this field is missing")

    if not isinstance(values["kind"], str) or values["kind"] not in REQUIRED:
        raise ValueError(
            f"{origin}: kind: expected one of {', '.join(get_args(Kind))}, not {values['kind']!r}"
        )

    for name in REQUIRED[values["kind"]]:
        if name not in values:
            raise ValueError(
                f"{origin}: {name}: this field is missing; a task of kind {values['kind']!r} needs it"
            )

    made = {name: field_of(name, value, origin) for name, value in values.items()}
    task = EvaluationTask(**made, origin=origin)
    check(task)

    return task


def field_of(name: str, value: Any, origin: str) -> Any:
    if name in ("normalise", "metric"):
        value = (
            (value,)
            if isinstance(value, str)
            else tuple(value)
            if isinstance(value, list)
            else value
        )
    elif name == "choices" and isinstance(value, list):
        value = tuple(value)

    several = name in ("normalise", "metric", "choices") and isinstance(value, tuple | dict)
    texts = (value.values() if isinstance(value, dict) else value) if several else (value,)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{origin}: {name}: expected text in quotation marks, not {value!r}")
    if name == "normalise" and not value:
        raise ValueError(
            f"{origin}: {name}: expected one or more of {', '.join(get_args(Normalise))}, not none at all"
        )
    if name == "normalise" and (unknown := set(value) - set(get_args(Normalise))):
        raise ValueError(
            f"{origin}: {name}: expected {', '.join(get_args(Normalise))}, not {', '.join(unknown)}"
        )

    return value


def check(task: EvaluationTask) -> None:
    for one in task.metric:
        if one not in METRICS[task.kind]:
            raise ValueError(
                f"{task.origin}: metric: expected {', '.join(METRICS[task.kind])}, not {one!r}"
            )

    if task.kind == "minimal pair" and (
        isinstance(task.choices, str | Mapping) or len(task.choices) != 2
    ):
        raise ValueError(f"{task.origin}: choices: expected two templates, the good sentence first")
    if (
        "choices" in REQUIRED[task.kind]
        and not isinstance(task.choices, str)
        and len(task.choices) < 2
    ):
        raise ValueError(f"{task.origin}: choices: expected two or more")
    if task.kind == "cloze" and not task.blank:
        raise ValueError(
            f"{task.origin}: blank: expected the sign that the choices are put in place of"
        )

    try:
        asked = task.columns
    except ValueError as error:
        raise ValueError(f"{task.origin}: {error}") from None

    if not asked:
        raise ValueError(
            f"{task.origin}: template: expected a {{column}} of the data in it, not {task.template!r}"
        )


# Templates


def parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Text, and the column that comes after it; {{ and }} are the brackets themselves."""
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
    """The column that a template is, where it is nothing else."""
    (before, column), *others = parts(template)
    return None if before or others else column


def fill(template: str, row: Mapping[str, Any]) -> str:
    return "".join(
        text + ("" if column is None else str(row[column]).strip())
        for text, column in parts(template)
    )
