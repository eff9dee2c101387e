"""Timing as ratios: the peers run in turn, round after round, so that a slow minute of the machine
hits all alike.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch


def compare(runs: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each run, after two rounds of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 2):
        for name, run in runs.items():
            took = clock(run, device)
            if round_ >= 2:
                seconds[name].append(took)
    return {name: statistics.median(times) for name, times in seconds.items()}


def clock(run: Callable[[], None], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def machine() -> str:
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    return f"{device}, PyTorch {torch.__version__}, {date.today()}"


class Table:
    """Rows of peers, each with its milliseconds and how many times faster the first of them is."""

    def __init__(self, title: str) -> None:
        self.lines = [f"{title}; {machine()}"]

    def add(self, row: str, seconds: dict[str, float]) -> None:
        ours = next(iter(seconds.values()))
        self.lines.append(row)
        self.lines += [
            f"  {name:32} {took * 1e3:10.2f} ms   x {took / ours:5.2f}"
            for name, took in seconds.items()
        ]

    def print(self) -> None:
        print("\n".join(self.lines), flush=True)
