"""The course in a notebook: `from qkv.learn import check, hint, status, show, reset`.

Functions that are defined in the notebook are checked as they are; without them, the files of the
student's folder.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.learn.check_screen import report_lines
from qkv.learn.course import Exercise, course, find_exercise
from qkv.learn.run_checks import Report, run_checks_of_functions
from qkv.learn.sandbox.check_runner import CAN_FORK
from qkv.learn.student_session import StudentSession
from qkv.text.printable import printable

COLOURS = {"passed": "#1a7f37", "failed": "#cf222e", "open": "#9a6700"}
WORDS = {"passed": "holds", "failed": "fails", "open": "open"}


@dataclass(frozen=True)
class CheckedExercise:
    """What checks found; true if all hold."""

    exercise: Exercise
    """The exercise."""
    report: Report
    """The results."""

    def __bool__(self) -> bool:
        return self.report.state == "passed"

    def __repr__(self) -> str:
        return "\n".join(line.plain for line in report_lines(self.exercise, self.report))

    def _repr_html_(self) -> str:
        exercise = self.exercise
        parts = [f"<b>{exercise.number}. {html.escape(exercise.title)}</b>"]
        if self.report.error:
            parts.append(coloured("failed", self.report.error))

        shown = False
        for result in self.report.results:
            text = f"{result.part}: {result.title}"
            if result.state == "failed":
                text += f". {result.message}"

            parts.append(coloured(result.state, text))
            if result.state == "failed" and not shown:
                shown = True
                parts += [table_html(example) for example in result.examples]

        if self.report.printed:
            parts.append(f"<pre>{html.escape(printable(self.report.printed[:2000]))}</pre>")

        return "".join(f"<div>{part}</div>" for part in parts)


class CourseText(str):
    """A text that a notebook shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def coloured(state: str, text: str) -> str:
    """A line with the word of a state in its colour."""
    word = f'<b style="color:{COLOURS[state]}">{WORDS[state]}</b>'
    return f"{word} {html.escape(printable(text))}"


def table_html(example: Any) -> str:
    """The table of an example."""
    rows = []
    if example.header:
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in example.header)
        rows.append(f"<tr>{cells}</tr>")

    for name, *cells in example.rows:
        row = "".join(f"<td>{html.escape(printable(cell))}</td>" for cell in cells)
        rows.append(f"<tr><th>{html.escape(name)}</th>{row}</tr>")

    caption = f"<caption>{html.escape(example.title)}</caption>"
    return f'<table style="margin:0 1em">{caption}{"".join(rows)}</table>'


def check(
    what: str | int | Callable[..., Any],
    mine: Mapping[str, Any] | None = None,
    folder: str | Path = ".",
) -> CheckedExercise:
    """Check an exercise: its file, or what a notebook defines.

    Args:
        what: The name or number of an exercise, such as "lookup" or 1; or a function of the
            notebook that has the name of a part: then only that part is checked.
        mine: Functions by name, such as globals() in a notebook (default: the file is checked).
        folder: The student's folder.

    Returns:
        What was found. A notebook shows it; as a condition it is true if all checks hold.

    Raises:
        ValueError: If there is no such exercise, or no exercise asks for such a function.

    Example:
        >>> def nearest(query, keys, values):
        ...     return values[(keys @ query).argmax()]
        >>> bool(check(nearest))
        True
    """
    session = StudentSession(Path(folder))
    parts: tuple[str, ...] = ()
    if callable(what):
        name = function_name(what)
        exercise = exercise_of(name)
        parts = (name,)
        mine = {**(mine or {}), name: what}
    else:
        exercise = find_exercise(str(what))

    if mine is None:
        session.folder.check_exists()
        report = session.check(exercise)
    elif CAN_FORK:
        report = session.check_functions(exercise, mine, parts)
    else:
        report = run_checks_of_functions(exercise, mine, parts)

    return CheckedExercise(exercise, report)


def function_name(function: Callable[..., Any]) -> str:
    """The name that a function was defined with.

    Raises:
        ValueError: If it has none, such as one that functools.partial makes.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ValueError(
            f"check: expected a function with a name, or an exercise, not {type(function).__name__}"
        )

    return name


def exercise_of(part: str) -> Exercise:
    """The one exercise with a part of this name.

    Raises:
        ValueError: If there is none, or more than one.
    """
    found = []
    for exercise in course().values():
        if part in [one.name for one in exercise.parts]:
            found.append(exercise)

    if not found:
        raise ValueError(f"check: no exercise asks for {part!r}; check('lookup', mine=globals())")
    if len(found) > 1:
        names = " and ".join(exercise.name for exercise in found)
        raise ValueError(
            f"check: {part!r} is part of {names}; check({found[0].name!r}, mine=globals())"
        )

    return found[0]


def hint(exercise: str | int = "", folder: str | Path = ".") -> CourseText:
    """The next of three hints for the first part that is not green.

    Args:
        exercise: The name or number of an exercise (default: the first that is not green).
        folder: The student's folder.

    Returns:
        The hint.

    Raises:
        ValueError: If there is no such exercise.
    """
    session = StudentSession(Path(folder))
    session.folder.check_exists()
    return CourseText(session.hint(str(exercise)))


def status(folder: str | Path = ".") -> CourseText:
    """All exercises, and how far the student is.

    Args:
        folder: The student's folder.

    Returns:
        A line for each exercise.
    """
    session = StudentSession(Path(folder))
    session.folder.check_exists()
    lines = []
    for number, name, title, minutes, _, state in session.rows():
        lines.append(f"{number:>2}  {name:<16} {minutes:>3} min  {state:<14} {title}")

    return CourseText("\n".join([*lines, session.summary()]))


def show(exercise: str | int, insist: bool = False, folder: str | Path = ".") -> CourseText:
    """The solution of an exercise.

    Args:
        exercise: The name or number of the exercise.
        insist: Show it although the exercise is not green.
        folder: The student's folder.

    Returns:
        The solution.
    """
    return CourseText(StudentSession(Path(folder)).show(str(exercise), insist))


def reset(exercise: str | int, folder: str | Path = ".") -> CourseText:
    """Write the file of an exercise anew; the old one is kept as a numbered copy.

    Args:
        exercise: The name or number of the exercise.
        folder: The student's folder.

    Returns:
        What was done.
    """
    session = StudentSession(Path(folder))
    session.folder.check_exists()
    return CourseText(session.reset(str(exercise)))
