"""Every exercise: its solution passes, its template is open, each wrong solution fails by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qkv.learn.course import HOLE, Exercise, Wrong, course
from qkv.learn.run_checks import Report, checks_of, import_student, run_check, run_checks
from support.student_files import write_answer

EXERCISES = list(course().values())
WRONG = [(exercise, wrong) for exercise in EXERCISES for wrong in exercise.wrong]


def failures(report: Report) -> str:
    return "\n".join(f"{one.title}: {one.message}" for one in report.results) + report.error


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.stem)
def test_the_solution_passes(exercise: Exercise, tmp_path: Path) -> None:
    report = run_checks(exercise, write_answer(tmp_path, exercise, exercise.answer))
    assert report.state == "passed", failures(report)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.stem)
def test_the_template_is_open(exercise: Exercise, tmp_path: Path) -> None:
    report = run_checks(exercise, write_answer(tmp_path, exercise, exercise.template))
    assert {result.state for result in report.results} == {"open"}, failures(report)
    assert exercise.template.count(HOLE) >= len(exercise.parts)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.stem)
def test_each_exercise_has_hints_checks_and_wrong_solutions(exercise: Exercise) -> None:
    checked = {function.check.part for function in checks_of(exercise)}
    assert checked == {part.name for part in exercise.parts}
    assert all(len(part.hints) == 3 for part in exercise.parts)
    assert len(exercise.wrong) >= 6
    assert 10 <= exercise.minutes <= 90


@pytest.mark.usefixtures("without_shape_checks")  # a student reads the message of the check
@pytest.mark.parametrize(
    ("exercise", "wrong"), WRONG, ids=[f"{one.stem}: {wrong.name}" for one, wrong in WRONG]
)
def test_a_wrong_solution_fails_by_name(exercise: Exercise, wrong: Wrong, tmp_path: Path) -> None:
    assert exercise.answer.count(wrong.old) >= 1, "the lines to replace are not in the solution"
    text = exercise.answer.replace(wrong.old, wrong.new)
    path = write_answer(tmp_path, exercise, text)
    mine = import_student(path)
    for function in checks_of(exercise):  # the first failure is what a student reads first
        result = run_check(function, mine, path)
        if result.state != "passed":
            break

    assert result.state == "failed", "no check fails"
    assert re.search(wrong.says, result.message), result.message
