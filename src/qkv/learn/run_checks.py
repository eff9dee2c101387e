"""Run the checks of an exercise on a student's file, in this process."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from qkv.learn.course import Exercise, course
from qkv.learn.expectations import SIZES, CheckTitle, Failed, FailingExample, InputDraw

State = Literal["passed", "failed", "open"]
"""Open: the hole is still there."""
LONGEST = 2000
"""Characters of a message; an exception may carry a text of any length."""


class TooLong(BaseException):
    """The student's code ran longer than it may; no `except Exception` of hers catches it."""


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    part: str
    title: str
    state: State
    message: str = ""
    examples: tuple[FailingExample, ...] = ()


@dataclass(frozen=True)
class Report:
    """What all checks of an exercise found."""

    exercise: str
    results: tuple[CheckResult, ...]
    error: str = ""
    """Why no check could run: the file does not exist, cannot be imported ..."""
    printed: str = ""
    """The beginning of what the student's code printed."""

    @property
    def state(self) -> State:
        """Passed if all checks passed, open if nothing was written yet, failed otherwise."""
        states = {result.state for result in self.results}
        if self.error:
            return "failed"
        if states == {"passed"}:
            return "passed"

        return "open" if states <= {"open"} else "failed"

    @property
    def held(self) -> int:
        """How many checks passed."""
        return sum(result.state == "passed" for result in self.results)


def run_checks(exercise: Exercise, path: Path, parts: Sequence[str] = ()) -> Report:
    """Import a student's file and run all checks of its exercise.

    Args:
        exercise: The exercise.
        path: The file; those of earlier exercises are imported from its folder.
        parts: Parts to check (default: all).

    Returns:
        The results; an error if the file cannot be imported.
    """
    try:
        mine = import_student(path)
    except (Exception, SystemExit) as error:
        return Report(exercise.name, (), import_error(error, path))

    results = []
    for function in checks_of(exercise, parts):
        results.append(run_check(function, mine, path))

    return Report(exercise.name, tuple(results))


def run_checks_of_functions(
    exercise: Exercise, functions: Mapping[str, Any], parts: Sequence[str] = ()
) -> Report:
    """Run the checks on functions of a notebook, in this process."""
    mine = module_of(exercise, functions)
    path = Path(f"{exercise.stem}.py")
    results = [run_check(function, mine, path) for function in checks_of(exercise, parts)]
    return Report(exercise.name, tuple(results))


def module_of(exercise: Exercise, functions: Mapping[str, Any]) -> ModuleType:
    """A module of what a student defined in a notebook; other parts are holes."""
    module = ModuleType(exercise.stem)
    vars(module).update(functions)
    for part in exercise.parts:
        vars(module).setdefault(part.name, not_defined)

    return module


def not_defined(*arguments: Any, **named: Any) -> None:
    """In place of a function that the notebook does not define yet."""
    raise NotImplementedError


def checks_of(exercise: Exercise, parts: Sequence[str] = ()) -> list[Callable[..., None]]:
    """The checks of an exercise, or of some of its parts, in the order of its file."""
    functions: list[Any] = []
    for value in vars(exercise.checks()).values():
        title = getattr(value, "check", None)
        if isinstance(title, CheckTitle) and (not parts or title.part in parts):
            functions.append(value)

    return functions


def run_check(function: Callable[..., None], mine: ModuleType, path: Path) -> CheckResult:
    """Run one check on inputs of growing size; the first failure counts."""
    title: CheckTitle = function.__dict__["check"]
    for size in SIZES:
        torch.manual_seed(size)
        try:
            function(mine, InputDraw(size, seed=0))
        except Failed as failed:
            return CheckResult(*title, "failed", failed.message[:LONGEST], failed.examples)
        except NotImplementedError as error:
            if not error.args:
                return CheckResult(*title, "open", open_hole(error, path))

            return CheckResult(*title, "failed", describe_error(error, path))
        except (Exception, SystemExit, TooLong) as error:
            return CheckResult(*title, "failed", describe_error(error, path))

    return CheckResult(*title, "passed")


def import_student(path: Path) -> ModuleType:
    """Import a file as a module of its own name; earlier exercises are found in its folder.

    The folder is last on the path: a file there with the name of a library replaces nothing.
    """
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# What went wrong, in a sentence


def open_hole(error: NotImplementedError, path: Path) -> str:
    """Which hole is still there: one of this file, or of an earlier one that it imports."""
    frame = student_frame(error, path)
    if frame is None or Path(frame.filename).name == path.name:
        return "not written yet"

    return f"{frame.name} of {Path(frame.filename).name}, which it uses, is not written yet"


def student_frame(error: BaseException, path: Path) -> traceback.FrameSummary | None:
    """The innermost line of the student's files, or of her notebook."""
    folder = path.parent.resolve()
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        in_notebook = "ipykernel" in frame.filename or frame.filename.startswith("<ipython")
        if in_notebook or Path(frame.filename).parent.resolve() == folder:
            found = frame

    return found


def describe_error(error: BaseException, path: Path) -> str:
    """An error of the student's code in a sentence, with the line it comes from."""
    frame = student_frame(error, path)
    where = ""
    if frame is not None:
        name = Path(frame.filename).name
        where = f" ({name if name.endswith('.py') else 'notebook'}, line {frame.lineno})"

    return explain(error, path)[:LONGEST] + where


def explain(error: BaseException, path: Path) -> str:
    """What an error of the student's code means."""
    text = one_line(error)
    if isinstance(error, TooLong):
        return "it runs too long and was stopped: is there a loop that never ends?"
    if isinstance(error, SystemExit):
        return "the code ends Python with sys.exit() or exit(); a function ends with return"
    if isinstance(error, RecursionError):
        return "RecursionError: a function calls itself without end"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "the code needs more memory than the checks allow; which tensor is that large?"
    if isinstance(error, EOFError):
        return "input() has nothing to read here; the inputs are the function's arguments"
    if isinstance(error, AttributeError) and error.name and is_file(error.obj, path):
        return f"{path.name} has no {error.name}: was it renamed or deleted?"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return missing_module(error.name)

    return f"{type(error).__name__}: {text}".removesuffix(": ")


def one_line(error: BaseException) -> str:
    """The message of an error; str() of a student's own error may itself fail."""
    try:
        return " ".join(str(error)[:LONGEST].split())
    except Exception:
        return ""


def is_file(value: object, path: Path) -> bool:
    """Whether a value is the student's module itself."""
    return isinstance(value, ModuleType) and value.__name__ == path.stem


def missing_module(name: str) -> str:
    """What to do about a module that is not there."""
    stem = name.partition(".")[0]
    for exercise in course().values():
        if exercise.stem == stem:
            return f"{stem}.py does not exist; qkv learn reset {exercise.name} writes it"

    return f"there is no module {name!r}: is the name right? The course needs only torch"


def import_error(error: BaseException, path: Path) -> str:
    """Why a file cannot be imported."""
    if isinstance(error, FileNotFoundError) and not path.exists():
        name = path.stem.partition("_")[2]
        return f"{path.name} does not exist; qkv learn reset {name} writes it"
    if isinstance(error, SyntaxError):
        file = Path(error.filename or path.name).name
        if "codec can't decode" in str(error):
            return f"{file} is not UTF-8 text; save it as UTF-8 in your editor"

        line = f"{file}, line {error.lineno}" if error.lineno else file
        return f"{line}: Python cannot read this: {error.msg}"
    if isinstance(error, NotImplementedError) and not error.args:
        return f"{path.name}: a hole is run while the file is imported; calls belong in functions"

    return f"{path.name} cannot be imported: {describe_error(error, path)}"
