"""Processes that are killed, without a chance to clean up, at every moment that matters."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

FORK = multiprocessing.get_context("fork")
TOUCHES = ("open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")


def killed_before_every_touch(action: Callable[[], object]) -> Iterator[None]:
    """Runs the action again and again, each time killed one touch of the disk later, until it ends
    by itself.

    Yields after each kill; the caller looks at what is left, and puts back what was there before.
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
    left = touch

    def count(event: str, _: Any) -> None:
        nonlocal left
        if event in TOUCHES:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    action()
    os._exit(0)  # what Python does at its end is not part of the action
