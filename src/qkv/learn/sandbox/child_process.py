"""Child processes: a copy of this process, or a new one; both end with all that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, BinaryIO

from qkv.learn.sandbox.check_child import CheckJob, leave, own_output, run_job


class ChildProcess(ABC):
    """A process with a student's code."""

    output: BinaryIO

    @abstractmethod
    def status(self) -> int | None:
        """The exit status, the negative number of a signal, or None while it runs."""

    @abstractmethod
    def end(self) -> None:
        """End it and all processes that it started."""


class ForkedChild(ChildProcess):
    """A copy of this process."""

    def __init__(self, job: CheckJob, namespace: Mapping[str, Any] | None) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, see prepare()
            self.pid = os.fork()

        if self.pid == 0:
            self.be_child(job, namespace, writing)

        os.close(writing)
        self.output = os.fdopen(reading, "rb", buffering=0)
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


class SpawnedChild(ChildProcess):
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
        self.output = self.process.stdout  # type: ignore[assignment]

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
