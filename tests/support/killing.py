"""Killing a process at every touch of the disk, without a chance to clean up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

FORK = multiprocessing.get_context("fork")
TOUCHES = ("open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
"""Audit events of the disk."""


def killed_before_every_touch(action: Callable[[], object]) -> Iterator[None]:
    """Run the action repeatedly, killed one touch of the disk later each time, until it completes.

    Yields after each kill: the caller checks what is left and restores what was there before.
    """
    touch = 0
    while True:
        touch += 1
        child = FORK.Process(target=run_and_die, args=(action, touch))
        child.start()
        child.join()
        if child.exitcode == 0:
            return

        assert child.exitcode == -signal.SIGKILL
        yield


def run_and_die(action: Callable[[], object], touch: int) -> None:
    """Run the action and kill the process at its n-th touch of the disk."""
    remaining = touch

    def count(event: str, _: Any) -> None:
        nonlocal remaining
        if event in TOUCHES:
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    action()
    os._exit(0)  # the interpreter's shutdown is not part of the action
