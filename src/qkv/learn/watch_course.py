"""`qkv learn`: wait for a file to be saved, check it, and show in one screen what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import repeat

from rich.console import Console
from rich.text import Text

from qkv.learn.check_screen import SCREEN, report_lines
from qkv.learn.course import Exercise, course
from qkv.learn.file_watch import SavedFiles
from qkv.learn.run_checks import Report
from qkv.learn.student_session import StudentSession

LOOK = 0.1
"""Seconds between two looks at the files."""
KEYS = "qkv learn hint, show, reset, list in another terminal; Ctrl-C ends."


def watch(
    session: StudentSession,
    console: Console,
    looks: Iterable[object] = repeat(None),
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Check the exercise that comes next, then each one that is saved, until Ctrl-C.

    Args:
        session: The course in its folder.
        console: Where the screen is shown.
        looks: As many looks at the files as this has elements.
        pause: Waits between two looks.
    """
    saved = SavedFiles(session.folder.path)
    exercise = session.folder.next_exercise() or list(course().values())[-1]
    try:
        show_check(session, exercise, console)
        for _ in looks:
            for exercise in saved.look():
                show_check(session, exercise, console)

            session.runner.warm()
            pause(LOOK)
    finally:
        session.runner.close()


def show_check(session: StudentSession, exercise: Exercise, console: Console) -> None:
    """Check an exercise and show the screen."""
    console.print(Text(f"checking {exercise.stem}.py ...", "dim"))
    report = session.check(exercise)
    show_screen(session, exercise, report, console)


def show_screen(
    session: StudentSession, exercise: Exercise, report: Report, console: Console
) -> None:
    """Clear the terminal and show a report, and what comes next."""
    footer = footer_lines(session, exercise, report)
    height = max(SCREEN, console.height) - len(footer) - 2
    lines = report_lines(exercise, report, console.width, height)
    console.clear()
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    console.print()
    for line in footer:
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def footer_lines(session: StudentSession, exercise: Exercise, report: Report) -> list[Text]:
    """What was noted, how far the student is, and what she can do."""
    lines = [Text(note, "yellow") for note in session.folder.notes]
    session.folder.notes.clear()
    text = Text(session.summary())
    following = session.folder.next_exercise()
    if following is None:
        text.append(" Next: qkv learn finish", "bold")
    elif report.state == "passed":
        text.append(f" Next: {following.stem}.py", "bold")

    return [*lines, text, Text(KEYS, "dim")]


def check_all(session: StudentSession, exercises: Iterable[Exercise]) -> list[Report]:
    """Check several exercises, one after the other."""
    reports = []
    try:
        for exercise in exercises:
            reports.append(session.check(exercise))
            session.runner.warm()
    finally:
        with suppress(OSError):
            session.runner.close()

    return reports
