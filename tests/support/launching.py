"""Programs on several ranks, started as torchrun does, and data for them."""

from __future__ import annotations

import os
import random
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    return subprocess.Popen(
        [*command, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 240) -> str:
    """Wait until the process ends; return what it printed."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            process.terminate()  # so that it ends its ranks
            process.communicate()


def train_on(ranks: int, folder: Path, device: str, *items: str) -> str:
    process = launch(ranks, str(RANKS), str(folder), device, *items)
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
