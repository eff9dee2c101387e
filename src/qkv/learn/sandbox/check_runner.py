"""Run the checks of an exercise in a child process, and turn whatever happens into a report.

On Linux the child is a copy (fork) of this process, which has imported torch already, so that a
result takes a fraction of a second. Elsewhere a process that has imported everything waits for the
next file.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.learn.course import Exercise
from qkv.learn.expectations import FailingExample
from qkv.learn.run_checks import CheckResult, Report
from qkv.learn.sandbox.check_child import SLOW, CheckJob, proof
from qkv.learn.sandbox.check_limits import OUT_OF_MEMORY, CheckLimits
from qkv.learn.sandbox.child_process import ChildProcess, ForkedChild, KeptOutput, SpawnedChild

CAN_FORK = sys.platform == "linux"
"""macOS has fork, but its libraries do not survive it."""
LOOK = 0.01
"""Seconds between two looks at the child."""
SECONDS_TO_START = 120.0
"""To import torch, on a slow disk."""
CRASHES = {
    "SIGSEGV": "a crash (segmentation fault): too deep a recursion, or an error in C code",
    "SIGABRT": "a crash (abort)",
    "SIGFPE": "a crash (a division by zero in C code)",
    "SIGBUS": "a crash (bus error)",
    "SIGKILL": "the operating system, probably because memory ran out",
}


class CheckRunner:
    """Runs checks in child processes.

    Args:
        limits: What each child may use.
        fork: Whether children are copies of this process.
    """

    def __init__(self, limits: CheckLimits | None = None, fork: bool = CAN_FORK) -> None:
        self.limits = limits or CheckLimits()
        self.fork = fork
        self.spare: SpawnedChild | None = None
        self.imported: set[str] = set()

    def warm(self) -> None:
        """Prepare the next check: import what the last one needed, or start a process."""
        if self.fork:
            for name in SLOW:
                if name in self.imported and name not in sys.modules:
                    import_module(name)
        elif self.spare is None:
            self.spare = SpawnedChild()

    def run(
        self,
        exercise: Exercise,
        path: Path,
        parts: Sequence[str] = (),
        namespace: Mapping[str, Any] | None = None,
    ) -> Report:
        """Check a student's file, or functions of a notebook; see `run_checks`.

        Args:
            exercise: The exercise.
            path: The student's file.
            parts: Parts to check (default: all).
            namespace: Functions of a notebook, which are checked in place of the file; only where
                this process can be copied.
        """
        if namespace is None and not path.exists():
            message = f"{path.name} does not exist; qkv learn reset {exercise.name} writes it"
            return Report(exercise.name, (), message)

        with tempfile.TemporaryDirectory(prefix="qkv-check-") as folder:
            results = Path(folder) / "results"
            results.touch()
            job = CheckJob(
                exercise.name,
                str(path.resolve()),
                str(results),
                secrets.token_hex(16),
                tuple(parts),
                self.limits,
            )
            messages, report = supervise(job, self.start(job, exercise, namespace))
            self.imported.update(messages.imported)
            return report

    def start(
        self, job: CheckJob, exercise: Exercise, namespace: Mapping[str, Any] | None
    ) -> ChildProcess:
        """A process that does the job."""
        if self.fork or namespace is not None:
            exercise.checks()  # imported here once, and not in each child
            return ForkedChild(job, namespace)

        self.warm()
        assert self.spare is not None
        child, self.spare = self.spare, None
        child.give(job)
        return child

    def close(self) -> None:
        """End the process that waits."""
        if self.spare is not None:
            self.spare.end()
            self.spare = None


# From messages to a report


class Messages:
    """What a child has sent so far.

    Args:
        job: The job, with the file that the child writes.
    """

    def __init__(self, job: CheckJob) -> None:
        self.job = job
        self.offset = 0
        self.number = 0
        self.rest = b""
        self.titles: list[list[str]] = []
        self.results: list[CheckResult] = []
        self.running: list[str] | None = None
        self.error = ""
        self.imported: list[str] = []
        self.is_ready = False
        self.is_done = False

    def read(self) -> None:
        """Read what came since the last call; unsigned and repeated lines are ignored."""
        try:
            with open(self.job.results, "rb") as file:
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:  # the student's code may delete what it likes in /tmp
            return

        self.offset += len(content)
        *lines, self.rest = (self.rest + content).split(b"\n")
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                sent = json.loads(line)
                number, kind, value = json.loads(sent["message"])
                if number == self.number and sent["proof"] == proof(self.job.key, sent["message"]):
                    self.number += 1
                    self.take(kind, value)

    def take(self, kind: str, value: Any) -> None:
        if kind == "ready":
            self.is_ready = True
            self.titles = value
        elif kind == "start":
            self.running = value
        elif kind == "result":
            self.results.append(read_result(value))
            self.running = None
        elif kind == "error":
            self.error = value
            self.is_done = True
        else:
            self.is_done = True
            self.imported = value

    def report(self, reason: str, printed: str) -> Report:
        """The report; the reason says why the child ended before all was done."""
        name = self.job.exercise
        if self.error:
            return Report(name, (), self.error, printed)
        if self.is_done and len(self.results) < max(1, len(self.titles)):
            return Report(name, (), "not all checks ran: does the file change the checks?", printed)
        if self.is_done:
            return Report(name, tuple(self.results), "", printed)
        if not self.is_ready:  # no line of the student's code has run
            return Report(name, (), reason, printed)
        if self.running is None:  # before the first check, or after the last one
            return Report(name, (), f"{Path(self.job.path).name}: {reason}", printed)

        results = list(self.results)
        for part, title in self.titles[len(results) :]:
            results.append(CheckResult(part, title, "failed", reason))
            reason = f"not run: {self.running[0]} ended the process"

        return Report(name, tuple(results), "", printed)


def read_result(table: dict[str, Any]) -> CheckResult:
    """A result from JSON."""
    examples = []
    for example in table["examples"]:
        rows = tuple(tuple(row) for row in example["rows"])
        examples.append(FailingExample(example["title"], rows, tuple(example["header"])))

    return CheckResult(
        table["part"], table["title"], table["state"], table["message"], tuple(examples)
    )


def supervise(job: CheckJob, child: ChildProcess) -> tuple[Messages, Report]:
    """Wait for a child and end it when its time is over; Ctrl-C ends it, too."""
    output = KeptOutput(child.output, job.limits.output)
    messages = Messages(job)
    deadline = time.monotonic() + SECONDS_TO_START
    counting = False
    status = None

    try:
        while not messages.is_done and (status := child.status()) is None:
            messages.read()
            now = time.monotonic()
            if messages.is_ready and not counting:
                counting = True
                deadline = now + job.limits.patience
            if now > deadline:
                break

            time.sleep(LOOK)
    finally:
        child.end()
        messages.read()

    reason = why_not_started(status)
    if counting or (messages.is_ready and status is not None):
        reason = why_ended(status, job.limits)

    return messages, messages.report(reason, output.text())


def why_not_started(status: int | None) -> str:
    """Why a process sent nothing at all; the student's code was not even read."""
    said = f"the process of the checks ended with status {status}"
    if status is None:
        said = f"the checks did not start within {SECONDS_TO_START:g} seconds"

    return f"{said}; your file was not checked: close other programs and check again"


def why_ended(status: int | None, limits: CheckLimits) -> str:
    """Why a process ended, or was ended (None), before it had sent all results."""
    if status is None:
        seconds = f"{limits.patience:g} seconds"
        return f"it ran longer than {seconds} and was ended: is there an endless loop?"
    if status == OUT_OF_MEMORY:
        return "the code needs more memory than the checks allow; which tensor is that large?"
    if status >= 0:
        return f"the code ended Python (os._exit, exit status {status}); a function ends by return"

    name = signal.Signals(-status).name
    if name == "SIGXCPU":
        return (
            f"it did not end within {limits.seconds:g} seconds of processor time and was ended: "
            "is there an endless loop?"
        )

    return f"the code was ended by {CRASHES.get(name, name)}"
