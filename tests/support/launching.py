"""Programs on several ranks, started as torchrun does, and data for them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from support.ranks import PAIRS, TEXT

RANKS = Path(__file__).parent / "ranks.py"
WORDS = [
    "the",
    "cat",
    "dog",
    "sees",
    "a",
    "small",
    "big",
    "house",
    "and",
    "tree",
    "runs",
    "to",
    "of",
    "it",
]


def launch(ranks: int, *arguments: str) -> subprocess.Popen[str]:
    """Start a program as `torchrun` does."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run_python(*torchrun, *arguments)


def run_python(*arguments: str) -> subprocess.Popen[str]:
    """Start Python with one thread, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 900) -> str:
    """Wait until the process ends; return what it printed."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # it and its ranks
            process.communicate()


def train_on_cpu(folder: Path, *groups: tuple[int, list[str]]) -> str:
    """Train on groups of ranks, one after the other; returns what they printed.

    A group is the number of its ranks and the items that they train. One program forks all ranks.
    """
    arguments = [str(folder), "cpu"]
    for ranks, items in groups:
        arguments += ["--ranks", str(ranks), *items]

    process = run_python(str(RANKS), *arguments)
    printed = finish(process)
    assert process.returncode == 0, printed
    return printed


def write_data(folder: Path) -> None:
    draw = random.Random(0)

    def words(n: int) -> str:
        return " ".join(draw.choices(WORDS, k=n))

    (folder / TEXT).write_text("\n".join(words(8) for _ in range(60)))
    lengths = draw.choices([1, 2, 3, 12], k=80)
    pairs = [f"{words(length)}\t{words(length)}\n" for length in lengths]
    (folder / PAIRS).write_text("".join(pairs))
