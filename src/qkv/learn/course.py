"""The course: exercises with their texts, their solutions and wrong solutions.

An exercise is three files in a folder of `exercises/`: `ex01_lookup.toml` has title, minutes,
hints and wrong solutions; `ex01_lookup.py.txt` is the solution, from which the student's file is
made; `lookup_checks.py` checks it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).with_name("exercises")
HOLE = "raise NotImplementedError  # your code replaces this line"
BEGIN = re.compile(r"^( *)# begin\n(.*?)^ *# end\n", re.DOTALL | re.MULTILINE)
"""What the student writes, in a solution."""


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong solution: the right one with some lines replaced."""

    name: str
    old: str
    new: str
    says: str
    """A regular expression that the message to the student must match."""


@dataclass(frozen=True)
class ExercisePart:
    """A function or class that the student writes."""

    name: str
    hints: tuple[str, ...]
    """Three steps, from a question to almost the answer."""


@dataclass(frozen=True)
class Exercise:
    """One exercise of the course."""

    number: int
    name: str
    """Such as lookup; `ex01_lookup` is the name of its file."""
    package: str
    """The package of its checks."""
    title: str
    minutes: int
    slides: tuple[str, ...]
    parts: tuple[ExercisePart, ...]
    wrong: tuple[Wrong, ...]
    solution: str
    """The solution, in which `# begin` and `# end` enclose what the student writes."""
    uses: tuple[str, ...] = ()
    """Names of earlier exercises whose files it imports."""

    @property
    def stem(self) -> str:
        """The name of its file without .py: ex01_lookup."""
        return f"ex{self.number:02}_{self.name}"

    @property
    def template(self) -> str:
        """The file that the student gets: the solution with holes."""
        return BEGIN.sub(lambda hole: f"{hole[1]}{HOLE}\n", self.solution)

    @property
    def answer(self) -> str:
        """The solution as a file that runs."""
        return BEGIN.sub(lambda hole: hole[2], self.solution)

    def checks(self) -> ModuleType:
        """The module with its checks."""
        return import_module(f"{self.package}.{self.name}_checks")


@cache
def course() -> dict[str, Exercise]:
    """The exercises in their order, by name.

    Example:
        >>> next(iter(course().values())).stem
        'ex01_lookup'
    """
    found = []
    for path in FOLDER.glob("*/ex??_*.toml"):
        found.append(read_exercise(path))

    found.sort(key=lambda exercise: exercise.number)
    return {exercise.name: exercise for exercise in found}


def read_exercise(path: Path) -> Exercise:
    """Read an exercise from its texts and its solution."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    number, _, name = path.stem.removeprefix("ex").partition("_")
    return Exercise(
        number=int(number),
        name=name,
        package=f"qkv.learn.exercises.{path.parent.name}",
        title=table["title"],
        minutes=table["minutes"],
        slides=tuple(table["slides"]),
        parts=tuple(ExercisePart(part["name"], tuple(part["hints"])) for part in table["part"]),
        wrong=tuple(Wrong(**wrong) for wrong in table["wrong"]),
        solution=path.with_suffix(".py.txt").read_text(encoding="utf-8"),
        uses=tuple(table.get("uses", ())),
    )


def find_exercise(name: str) -> Exercise:
    """The exercise with a name, a number or a file name.

    Raises:
        ValueError: If there is none.
    """
    wanted = Path(name).name.removesuffix(".py")
    for exercise in course().values():
        if wanted in (exercise.name, exercise.stem, str(exercise.number)):
            return exercise

    raise ValueError(f"exercise: there is no {name!r}; expected one of {', '.join(course())}")
