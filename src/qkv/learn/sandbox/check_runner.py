"""Run the checks of an exercise in a child process, and turn whatever happens into a report.

On Linux the child is a copy (fork) of this process, which has imported torch already, so that a
result takes a fraction of a second. Elsewhere a process that has imported everything waits for the
next file.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from qkv.learn.course import Exercise
from qkv.learn.expectations import Example
from qkv.learn.run_checks import CheckResult, Report
from qkv.learn.sandbox.check_child import CheckJob, leave, own_output, run_job
from qkv.learn.sandbox.check_limits import CheckLimits

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
    "SIGXCPU": "the limit of processor time: is there an endless loop?",
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

    def warm(self) -> None:
        """Prepare the next check, where a child needs seconds to start."""
        if not self.fork and self.spare is None:
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
            return supervise(job, self.start(job, exercise, namespace))

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


# Child processes


class ChildProcess(Protocol):
    """A process with a student's code."""

    output: BinaryIO

    def status(self) -> int | None:
        """The exit status, the negative number of a signal, or None while it runs."""

    def end(self) -> None:
        """End it and all processes that it started."""


class ForkedChild:
    """A copy of this process."""

    def __init__(self, job: CheckJob, namespace: Mapping[str, Any] | None) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, see prepare()
            self.pid = os.fork()

        if self.pid == 0:
            self.be_child(job, namespace, writing)

        os.close(writing)
        self.output: BinaryIO = os.fdopen(reading, "rb", buffering=0)  # type: ignore[assignment]
        self.ended: int | None = None

    def be_child(self, job: CheckJob, namespace: Mapping[str, Any] | None, writing: int) -> None:
        """Do the job in the new process, and end it: nothing of the parent's code goes on here."""
        status = 1
        try:
            os.setsid()
            own_output(writing)
            run_job(job, namespace)
            status = 0
        finally:
            leave(status)

    def status(self) -> int | None:
        if self.ended is None:
            self.ended = peek(self.pid)

        return self.ended

    def end(self) -> None:
        end_group(self.pid)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class SpawnedChild:
    """A new process, which imports everything and then waits for a job."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            # -P: the student's folder must not be searched for modules of the library.
            [sys.executable, "-P", "-m", "qkv.learn.sandbox.check_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output: BinaryIO = self.process.stdout  # type: ignore[assignment]

    def give(self, job: CheckJob) -> None:
        """Send what to do."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, as its status will say
            self.process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            self.process.stdin.close()

    def status(self) -> int | None:
        if hasattr(os, "waitid") and self.process.returncode is None:
            return peek(self.process.pid)

        return self.process.poll()

    def end(self) -> None:
        if hasattr(os, "killpg"):
            end_group(self.process.pid)
        else:
            self.process.kill()

        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def peek(pid: int) -> int | None:
    """The status of a child that has ended; its number stays taken until its group is ended."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None

    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def end_group(pid: int) -> None:
    """End a process and all of its session that it started."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


class KeptOutput:
    """The beginning of what a process prints; the rest is read and forgotten.

    Args:
        pipe: Where the output comes from.
        most: Bytes to keep.
    """

    def __init__(self, pipe: BinaryIO, most: int) -> None:
        self.pipe = pipe
        self.most = most
        self.kept = bytearray()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := self.pipe.read(1 << 16):
                self.kept += chunk[: self.most - len(self.kept)]

    def text(self) -> str:
        """What was kept, after the process has ended."""
        self.thread.join(1.0)  # a process that left its group may still hold the pipe
        if not self.thread.is_alive():
            self.pipe.close()

        return bytes(self.kept).decode("utf-8", "replace")


# From messages to a report


class Messages:
    """What a child has sent so far.

    Args:
        job: The job, with the file that the child writes.
    """

    def __init__(self, job: CheckJob) -> None:
        self.job = job
        self.offset = 0
        self.rest = b""
        self.titles: list[list[str]] = []
        self.results: list[CheckResult] = []
        self.running: list[str] | None = None
        self.error = ""
        self.is_ready = False
        self.is_done = False

    def read(self) -> None:
        """Read what came since the last call; lines without the key are ignored."""
        with open(self.job.results, "rb") as file:
            file.seek(self.offset)
            content = file.read()

        self.offset += len(content)
        *lines, self.rest = (self.rest + content).split(b"\n")
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                message = json.loads(line)
                if message["key"] == self.job.key:
                    self.take(message["kind"], message["value"])

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

    def report(self, reason: str, printed: str) -> Report:
        """The report; the reason says why the child ended before all was done."""
        name = self.job.exercise
        if self.error:
            return Report(name, (), self.error, printed)
        if self.is_done:
            return Report(name, tuple(self.results), "", printed)
        if not self.titles or (not self.results and self.running is None):
            return Report(name, (), f"{Path(self.job.path).name}: {reason}", printed)

        results = list(self.results)
        for part, title in self.titles[len(results) :]:
            results.append(CheckResult(part, title, "failed", reason))
            reason = "not run, since an earlier check ended the process"

        return Report(name, tuple(results), "", printed)


def read_result(table: dict[str, Any]) -> CheckResult:
    """A result from JSON."""
    examples = []
    for example in table["examples"]:
        rows = tuple(tuple(row) for row in example["rows"])
        examples.append(Example(example["title"], rows, tuple(example["header"])))

    return CheckResult(
        table["part"], table["title"], table["state"], table["message"], tuple(examples)
    )


def supervise(job: CheckJob, child: ChildProcess) -> Report:
    """Wait for a child and end it when its time is over; Ctrl-C ends it, too."""
    output = KeptOutput(child.output, job.limits.output)
    messages = Messages(job)
    reason = ""
    deadline = time.monotonic() + SECONDS_TO_START
    counting = False

    try:
        while not messages.is_done and (status := child.status()) is None:
            messages.read()
            now = time.monotonic()
            if messages.is_ready and not counting:
                counting = True
                deadline = now + job.limits.patience
            if now > deadline:
                seconds = f"{job.limits.patience:g} seconds"
                reason = f"it ran longer than {seconds} and was ended: is there an endless loop?"
                break

            time.sleep(LOOK)
        else:
            reason = "" if messages.is_done else why_ended(status or 0)
    finally:
        child.end()
        messages.read()

    return messages.report(reason, output.text())


def why_ended(status: int) -> str:
    """Why a process ended before it had sent all results."""
    if status >= 0:
        return f"the code ended Python (os._exit, exit status {status}); a function ends by return"

    name = signal.Signals(-status).name
    return f"the code was ended by {CRASHES.get(name, name)}"
