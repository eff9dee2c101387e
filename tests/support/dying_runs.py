"""Runs in child processes that can be killed. They come from a server that has imported all, and
trained nothing.

A process that has gone backwards through a network on a machine with a GPU cannot be forked; the
server can.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from support.killing import TOUCHES
from support.small_training import Plan

SERVER = multiprocessing.get_context("forkserver")


def child(plan: Plan, *, touch: int | None = None, file_limit: int | None = None) -> BaseProcess:
    """Begun; it is killed at a touch of its folder, or can write no file larger than so many bytes."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *([before] if before else [])])
    try:
        SERVER.set_forkserver_preload(["support.dying_runs"])
        process = SERVER.Process(target=go, args=(plan, dict(os.environ), touch, file_limit))
        process.start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return process


def go(plan: Plan, environment: dict[str, str], touch: int | None, file_limit: int | None) -> None:
    os.environ.update(environment)  # the server's may be of another test
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        try:
            plan.start()
        except OSError as error:
            (plan.run.out / "said").write_text(str(error))
            os._exit(7)
    else:
        if touch is not None:
            die_at(touch, str(plan.run.out))
        plan.start()
    os._exit(0)


def die_at(touch: int, folder: str) -> None:
    """Killed at a touch of this folder. Others are not counted: most are of modules that are
    imported late.
    """
    left = touch

    def count(event: str, args: Any) -> None:
        nonlocal left
        if event in TOUCHES and str(args[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def finished(process: BaseProcess) -> int:
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode
