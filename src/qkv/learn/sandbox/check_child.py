"""The child process that runs a student's code, and sends each result to its parent at once.

The results go to a private file, numbered and signed with a key that the parent chose, and not to
the standard output, which belongs to the student. This guards against accidents and simple tricks;
code that searches the memory of its own process could still find the key.

`python -m qkv.learn.sandbox.check_child` imports everything, then waits on its standard input for
what to do.
"""

from __future__ import annotations

import faulthandler
import hmac
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from qkv.learn.course import find_exercise
from qkv.learn.run_checks import (
    CheckResult,
    TooLong,
    checks_of,
    describe_error,
    import_error,
    import_student,
    module_of,
    run_check,
)
from qkv.learn.sandbox.check_limits import CheckLimits, apply_limits, time_limit
from qkv.learn.sandbox.replaced_functions import KnownFunctions, replaced_sentence

LONGEST_CELL = 200
SLOW = ("torch._dynamo",)
"""Modules that take seconds to import, and that torch imports only for some exercises."""
Send = Callable[[str, Any], None]


@dataclass(frozen=True)
class CheckJob:
    """What a child process does."""

    exercise: str
    path: str
    """The student's file."""
    results: str
    """The file for the results."""
    key: str
    """Every message comes with a proof that its writer knew it."""
    parts: tuple[str, ...]
    """Parts to check; none means all."""
    limits: CheckLimits


def run_job(job: CheckJob, namespace: Mapping[str, Any] | None = None) -> None:
    """Import the student's file, or take her functions from a namespace, and run the checks."""
    descriptor = os.open(job.results, os.O_WRONLY | os.O_APPEND)
    number = 0

    def send(kind: str, value: Any) -> None:
        if kind in ("error", "done"):
            flush_output()  # before the parent ends this process

        nonlocal number
        message = json.dumps([number, kind, value])
        number += 1
        line = json.dumps({"proof": proof(job.key, message), "message": message})
        os.write(descriptor, f"{line}\n".encode())

    exercise = find_exercise(job.exercise)
    path = Path(job.path)
    prepare()
    functions = checks_of(exercise, job.parts)
    known = KnownFunctions()
    apply_limits(job.limits, path.parent)
    send("ready", [list(function.__dict__["check"]) for function in functions])

    try:
        with time_limit(job.limits):
            mine = import_student(path) if namespace is None else module_of(exercise, namespace)
    except BaseException as error:
        send("error", import_error(error, path))
        return

    said = replaced_sentence(known, path.name)
    if not said:
        run_each(functions, mine, path, job.limits, send)
        said = replaced_sentence(known, path.name)

    if said:
        send("error", said)

    send("done", [name for name in SLOW if name in sys.modules])


def proof(key: str, message: str) -> str:
    """What shows that a numbered message was written with the key, which no file contains."""
    return hmac.new(key.encode(), message.encode(), "sha256").hexdigest()


def prepare() -> None:
    """Forget earlier versions of the student's files; one thread is enough for small tensors."""
    for name in list(sys.modules):
        if re.fullmatch(r"ex\d\d_\w+", name):
            del sys.modules[name]

    faulthandler.disable()  # the parent says that there was a crash
    sys.dont_write_bytecode = True  # two saves in a second would find the bytecode of the first
    # A forked process must not use the threads of its parent: they were not copied.
    torch.set_num_threads(1)


def run_each(
    functions: list[Callable[..., None]],
    mine: ModuleType,
    path: Path,
    limits: CheckLimits,
    send: Send,
) -> None:
    """Run the checks; of a part that ran too long, no further one."""
    endless: dict[str, str] = {}
    for function in functions:
        part, title = function.__dict__["check"]
        send("start", [part, title])
        if part in endless:
            result = CheckResult(part, title, "failed", endless[part])
        else:
            result = run_limited(function, mine, path, limits)
            if "runs too long" in result.message:
                endless[part] = f"not run, since {part} runs too long"

        send("result", shortened_result(result))


def run_limited(
    function: Callable[..., None], mine: ModuleType, path: Path, limits: CheckLimits
) -> CheckResult:
    """Run one check in bounded time, with torch's usual settings."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    part, title = function.__dict__["check"]
    try:
        with time_limit(limits):
            return run_check(function, mine, path)
    except (TooLong, GeneratorExit, KeyboardInterrupt) as error:
        return CheckResult(part, title, "failed", describe_error(error, path))


def shortened_result(result: CheckResult) -> dict[str, Any]:
    """A result as JSON; cells of tables may hold texts of any length."""
    table = asdict(result)
    for example in table["examples"]:
        example["rows"] = [[cell[:LONGEST_CELL] for cell in row] for row in example["rows"]]

    return table


# The process itself


def own_output(descriptor: int | None) -> None:
    """Read nothing, and print to a pipe."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if descriptor is not None:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)

    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "closefd": False,
        "buffering": 1,
    }
    sys.stdout = os.fdopen(1, "w", **options)
    sys.stderr = os.fdopen(2, "w", **options)


def leave(status: int) -> None:
    """End the process at once: nothing that the student's code registered runs."""
    flush_output()
    os._exit(status)


def flush_output() -> None:
    """Print what is still in buffers; the student's code may have replaced them."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Read what to do from the standard input, and do it."""
    line = sys.stdin.readline()
    if not line:  # the parent does not need this process
        leave(0)

    table = json.loads(line)
    table.update(limits=CheckLimits(**table["limits"]), parts=tuple(table["parts"]))
    own_output(None)
    run_job(CheckJob(**table))
    leave(0)


if __name__ == "__main__":
    main()
