"""What a child process with a student's code may use, and what it may not do.

Limits of the operating system bound memory, processor time and the size of files. An audit hook,
which Python code cannot remove, forbids starting programs, ending other processes, and writing to
the library or to the course.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from qkv.learn.run_checks import TooLong

LIMITS_MEMORY = sys.platform == "linux"
"""Whether the operating system limits memory in a way that torch can live with."""
LOOK_AT_MEMORY = 0.05
OUT_OF_MEMORY = 97
"""Seconds between two looks, and the exit status of a process that has grown too much."""
SECONDS_TO_DIE = 2
"""Between the signal of the end of processor time and the end of a process that blocks it."""
PACKAGE = str(Path(__file__).resolve().parents[2])
STARTING = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
}
ENDING = {"os.kill", "os.killpg"}
CHANGING = {"os.chmod", "os.link", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
"""Audit events; of those in CHANGING the first arguments are paths."""
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class CheckLimits:
    """What the checks of one exercise may use."""

    seconds: float = 20.0
    """Processor time of all checks; one check may take half of it."""
    patience: float = 60.0
    """Seconds of the clock, for code that waits; a busy machine is not the student's fault."""
    memory: int = 2 << 30
    """Bytes beyond what torch and the library need."""
    output: int = 64 << 10
    """Bytes of printed text that are kept."""
    file: int = 64 << 20
    """Bytes of a file that is written."""


def apply_limits(limits: CheckLimits, folder: Path) -> None:
    """Limit this process for good, as far as the operating system can.

    Args:
        limits: What the checks may use.
        folder: The student's folder, in which nothing is changed.
    """
    sys.addaudithook(partial(forbid, (PACKAGE, str(folder.resolve()))))
    try:
        import resource
    except ImportError:  # Windows
        return

    used = math.ceil(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file,
        # For code that never returns to Python, where no signal handler runs.
        resource.RLIMIT_CPU: used + math.ceil(limits.seconds),
    }
    if LIMITS_MEMORY:
        wanted[resource.RLIMIT_DATA] = private_memory() + limits.memory
    else:
        threading.Thread(target=watch_memory, args=(limits.memory,), daemon=True).start()

    for kind, soft in wanted.items():
        # At its hard limit of time a process is killed, as for lack of memory; before that comes
        # a signal with a name of its own.
        most = soft + SECONDS_TO_DIE if kind == resource.RLIMIT_CPU else soft
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)

        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (min(soft, most), most))


def watch_memory(most: int) -> None:
    """End this process when it has grown too much, where the operating system does not see to it.

    Args:
        most: Bytes that it may grow.
    """
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while True:
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if (now - before) * unit > most:
            os._exit(OUT_OF_MEMORY)

        time.sleep(LOOK_AT_MEMORY)


def private_memory() -> int:
    """Bytes of private memory that this process has on Linux."""
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10

    return 0


@contextmanager
def time_limit(limits: CheckLimits) -> Iterator[None]:
    """Raise TooLong in the code below when its time is over, and again each second.

    An endless loop is then reported with its line. Code that never returns to Python is ended by
    the parent.
    """
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, limits.seconds / 2, 1.0)
    signal.setitimer(signal.ITIMER_REAL, limits.patience / 2, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def forbid(folders: tuple[str, ...], event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: raise PermissionError for what a student's code must not do."""
    if event in STARTING:
        raise PermissionError("the checks start no other programs or processes; leave that out")
    if event in ENDING:
        raise PermissionError("the checks end no processes; leave that out")
    if event == "open":
        path, mode, flags = arguments
        writes = set(mode or "") & set("wax+") or (flags or 0) & WRITE_FLAGS
        if writes and is_below(path, folders):
            raise PermissionError(f"{path}: the checks do not write to the course or to qkv")
    elif event in CHANGING:
        for path in arguments[:2]:
            if is_below(path, folders):
                raise PermissionError(f"{path}: the checks do not change the course or qkv")


def is_below(path: Any, folders: tuple[str, ...]) -> bool:
    """Whether a path is one of the folders, or below one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False

    name = os.path.realpath(os.fsdecode(path)) + os.sep
    return any(name.startswith(folder + os.sep) for folder in folders)
