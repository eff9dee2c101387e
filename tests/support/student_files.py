"""Files of a student: a solution, or one in which some lines are others."""

from __future__ import annotations

from pathlib import Path

from qkv.learn.course import Exercise, course
from qkv.learn.run_checks import Report, run_checks


def write_answer(folder: Path, exercise: Exercise, text: str) -> Path:
    """The student's file, beside the solutions of the exercises that it uses."""
    for name in exercise.uses:
        earlier = course()[name]
        (folder / f"{earlier.stem}.py").write_text(earlier.answer, encoding="utf-8")

    path = folder / f"{exercise.stem}.py"
    path.write_text(text, encoding="utf-8")
    return path


def report_with(folder: Path, name: str, old: str, new: str) -> Report:
    """The checks of a solution in which some lines are replaced."""
    exercise = course()[name]
    assert old in exercise.answer
    return run_checks(exercise, write_answer(folder, exercise, exercise.answer.replace(old, new)))
