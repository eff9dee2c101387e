"""Training jobs in child processes that are killed, or whose disk is full.

The children come from a fork server that has imported everything and trained nothing: a process
that has run a backward pass on a machine with a GPU cannot be forked.
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
import torch._inductor.config  # which every run imports, and that takes a second

from support.killing import TOUCHES
from support.small_training import TrainingJob

SERVER = multiprocessing.get_context("forkserver")
DISK_FULL = 7
"""Exit status of a job whose file limit was reached."""
ERROR_FILE = "disk-full.txt"


def start_child(
    job: TrainingJob, *, touch: int | None = None, file_limit: int | None = None
) -> BaseProcess:
    """Start a job that is killed at a touch of its folder, or can write no larger file."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = os.environ.get("PYTHONPATH")
    paths = [tests]
    if before:
        paths.append(before)

    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        SERVER.set_forkserver_preload(["support.dying_runs"])
        process = SERVER.Process(target=run_job, args=(job, dict(os.environ), touch, file_limit))
        process.start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

    return process


def run_job(
    job: TrainingJob, environment: dict[str, str], touch: int | None, file_limit: int | None
) -> None:
    os.environ.update(environment)  # the server may have that of another test
    torch.set_num_threads(1)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())

    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        try:
            job.start()
        except OSError as error:
            (job.run.out / ERROR_FILE).write_text(str(error))
            os._exit(DISK_FULL)
    else:
        if touch is not None:
            kill_at(touch, str(job.run.out))

        job.start()

    os._exit(0)


def kill_at(touch: int, folder: str) -> None:
    """Kill this process at a touch of the folder; others, mostly of imports, do not count."""
    remaining = touch

    def count(event: str, args: Any) -> None:
        nonlocal remaining
        if event in TOUCHES and str(args[0]).startswith(folder):
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def exit_status(process: BaseProcess) -> int:
    """Wait for a child and return its exit status."""
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode
