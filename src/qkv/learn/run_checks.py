"""Run the checks of an exercise on a student's file, in this process."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from qkv.learn.course import Exercise
from qkv.learn.expectations import SIZES, CheckTitle, Draw, Example, Failed

State = Literal["passed", "failed", "open"]
"""Open: the hole is still there."""


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    part: str
    title: str
    state: State
    message: str = ""
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Report:
    """What all checks of an exercise found."""

    exercise: str
    results: tuple[CheckResult, ...]
    error: str = ""
    """Why no check could run: the file does not exist, cannot be imported ..."""

    @property
    def state(self) -> State:
        """Passed if all checks passed, open if nothing was written yet, failed otherwise."""
        states = {result.state for result in self.results}
        if self.error:
            return "failed"
        if states == {"passed"}:
            return "passed"

        return "open" if states <= {"open"} else "failed"


def run_checks(exercise: Exercise, path: Path) -> Report:
    """Import a student's file and run all checks of its exercise.

    Args:
        exercise: The exercise.
        path: The file; those of earlier exercises are imported from its folder.

    Returns:
        The results; an error if the file cannot be imported.
    """
    try:
        mine = import_student(path)
    except Exception as error:
        return Report(exercise.name, (), import_error(error, path))

    results = []
    for function in checks_of(exercise):
        results.append(run_check(function, mine, path))

    return Report(exercise.name, tuple(results))


def checks_of(exercise: Exercise) -> list[Callable[..., None]]:
    """The checks of an exercise, in the order of its file."""
    functions: list[Any] = []
    for value in vars(exercise.checks()).values():
        if isinstance(getattr(value, "check", None), CheckTitle):
            functions.append(value)

    return functions


def run_check(function: Callable[..., None], mine: ModuleType, path: Path) -> CheckResult:
    """Run one check on inputs of growing size; the first failure counts."""
    title: CheckTitle = function.__dict__["check"]
    for size in SIZES:
        torch.manual_seed(size)
        try:
            function(mine, Draw(size, seed=0))
        except Failed as failed:
            return CheckResult(*title, "failed", failed.message, failed.examples)
        except NotImplementedError as error:
            if not error.args:
                return CheckResult(*title, "open", "not written yet")

            return CheckResult(*title, "failed", describe_error(error, path))
        except Exception as error:
            return CheckResult(*title, "failed", describe_error(error, path))

    return CheckResult(*title, "passed")


def import_student(path: Path) -> ModuleType:
    """Import a file as a module of its own name, with its folder on the path."""
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def describe_error(error: BaseException, path: Path) -> str:
    """An error of the student's code, with the line it comes from."""
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).parent == path.parent.resolve():
            line = f"{Path(frame.filename).name}, line {frame.lineno}"

    where = f" ({line})" if line else ""
    return f"{type(error).__name__}: {error}{where}"


def import_error(error: Exception, path: Path) -> str:
    """Why a file cannot be imported."""
    if isinstance(error, FileNotFoundError) and not path.exists():
        return f"{path.name} does not exist; qkv learn reset writes it"
    if isinstance(error, SyntaxError):
        return f"{path.name}, line {error.lineno}: Python cannot read this line: {error.msg}"

    return f"{path.name} cannot be imported: {describe_error(error, path)}"
