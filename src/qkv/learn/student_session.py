"""What a student asks for: check, hint, show, reset, list, next; in a terminal and in a notebook.

torch is imported with the first check: the list appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.learn.course import Exercise, ExercisePart, course, find_exercise
from qkv.learn.student_folder import StudentFolder

if TYPE_CHECKING:
    from qkv.learn.run_checks import Report
    from qkv.learn.sandbox.check_runner import CheckRunner


class StudentSession:
    """The course in a folder, with checks that are remembered.

    Args:
        folder: The student's folder.
        runner: How checks are run.
    """

    def __init__(self, folder: Path, runner: CheckRunner | None = None) -> None:
        self.folder = StudentFolder(folder)
        self.own_runner = runner

    @property
    def runner(self) -> CheckRunner:
        """How checks are run."""
        if self.own_runner is None:
            from qkv.learn.sandbox.check_runner import CheckRunner

            self.own_runner = CheckRunner()

        return self.own_runner

    def check(self, exercise: Exercise) -> Report:
        """Check a file, and remember the result."""
        digest = self.folder.digest(exercise)  # a save during the check is not checked yet
        report = self.runner.run(exercise, self.folder.file(exercise))
        parts = [(result.part, result.state) for result in report.results]
        with suppress(OSError):  # a folder that cannot be written to can still be checked
            self.folder.record(exercise, report.state, parts, digest)

        return report

    def check_functions(
        self, exercise: Exercise, functions: Mapping[str, Any], parts: Sequence[str] = ()
    ) -> Report:
        """Check functions of a notebook; nothing is remembered, since there is no file."""
        return self.runner.run(exercise, self.folder.file(exercise), parts, functions)

    def current(self, name: str = "") -> Exercise:
        """The exercise with a name, or the first that is not green."""
        if name:
            return find_exercise(name)

        exercise = self.folder.next_exercise()
        if exercise is None:
            raise ValueError(
                "exercise: all exercises are green; name one, or see your GPT with qkv learn finish"
            )

        return exercise

    def hint(self, name: str = "") -> str:
        """The next hint of the first part that is not green."""
        exercise = self.current(name)
        standing = self.folder.standing(exercise)
        if standing.state == "changed" or not standing.parts:
            report = self.check(exercise)
            if report.error:
                return f"{exercise.name}: {report.error}"

            standing = self.folder.standing(exercise)

        part = first_open(exercise, standing.parts)
        if part is None:
            return f"{exercise.name}: all checks hold; qkv learn show {exercise.name} compares"

        text, number = self.folder.next_hint(exercise, part)
        return f"{exercise.name}, {part.name}, hint {number} of {len(part.hints)}: {text}"

    def show(self, name: str, insist: bool = False) -> str:
        """The solution of an exercise that is green, or of any if insisted on."""
        exercise = find_exercise(name)
        if not insist and not self.folder.standing(exercise).was_green:
            raise ValueError(
                f"show: {exercise.name} is not green yet; qkv learn hint {exercise.name} helps, "
                "and --insist shows the solution all the same"
            )

        return exercise.answer

    def reset(self, name: str) -> str:
        """Write a file anew; say where the old one is."""
        exercise = find_exercise(name)
        file = self.folder.file(exercise).name
        copy = self.folder.reset(exercise)
        if copy is None:
            return f"{file} is as it was at the beginning"

        return f"{file} is as it was at the beginning; your version is in {copy.name}"

    def rows(self) -> list[tuple[str, ...]]:
        """Number, name, title, minutes, slides and state of each exercise."""
        rows: list[tuple[str, ...]] = []
        for exercise in course().values():
            state = state_words(self.folder, exercise)
            slides = ", ".join(exercise.slides)
            rows.append(
                (
                    str(exercise.number),
                    exercise.name,
                    exercise.title,
                    str(exercise.minutes),
                    slides,
                    state,
                )
            )

        return rows

    def summary(self) -> str:
        """How many exercises are green, and how much time the others take."""
        green = 0
        minutes = 0
        for exercise in course().values():
            if self.folder.standing(exercise).state == "passed":
                green += 1
            else:
                minutes += exercise.minutes

        if green == len(course()):
            return f"All {green} exercises are green. Next: qkv learn finish, your GPT beside ours."

        left = f"{minutes / 60:.1f} hours" if minutes > 90 else f"{minutes} minutes"
        verb = "is" if green == 1 else "are"
        return f"{green} of {len(course())} exercises {verb} green; about {left} are left."

    def next(self) -> str:
        """What comes next, in a few lines."""
        exercise = self.folder.next_exercise()
        if exercise is None:
            return f"{self.summary()} qkv learn finish trains your own GPT."

        parts = ", ".join(part.name for part in exercise.parts)
        return (
            f"{exercise.number}. {exercise.title}\n"
            f"{self.folder.file(exercise)}, about {exercise.minutes} minutes\n"
            f"To write: {parts}\n"
            f"Slides: {', '.join(exercise.slides)}"
        )


def first_open(exercise: Exercise, states: Mapping[str, str]) -> ExercisePart | None:
    """The first part that is not green."""
    for part in exercise.parts:
        if states.get(part.name) != "passed":
            return part

    return None


def state_words(folder: StudentFolder, exercise: Exercise) -> str:
    """The state of an exercise in the words of the list."""
    standing = folder.standing(exercise)
    if standing.state == "passed":
        return "green"
    if standing.state == "changed":
        return "changed since the last check"
    if standing.state == "open":
        return "open"
    if not standing.checks:
        return "cannot be checked"

    return f"{standing.held} of {standing.checks} hold"
