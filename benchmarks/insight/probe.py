"""Memory of probes: a million tokens, twelve layers of width 768, activations on disk.

    python -m benchmarks.insight.probe    on a CPU, 3 GB of disk; a few minutes

The probes are those of `qkv probe`: for each layer a linear probe of the true and one of the
shuffled labels, trained for one epoch over all tokens, then tested. The activations are random:
memory and time do not depend on them. To save disk space, all layers read the same file. Peak
memory is measured in a separate process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from benchmarks.harness import machine
from qkv.insight.probing.activations import BLOCK, ActivationsOnDisk, ProbeData
from qkv.insight.probing.linear_probe import ProbeTraining
from qkv.insight.probing.probe_model import ProbeRun
from qkv.insight.probing.probe_tasks import ProbeTask

CLASSES = 17  # as many as there are universal parts of speech
LENGTH = 50


@dataclass
class Options:
    tokens: int = 1_000_000
    layers: int = 12
    width: int = 768
    seeds: int = 1
    folder: Path | None = None
    """Set by the benchmark itself for its separate process."""


class RandomActivations(ActivationsOnDisk):
    """Random activations on disk."""

    def __init__(self, file: Path, texts: ProbeData, options: Options) -> None:
        self.texts = texts
        self.blocks = texts.blocks(BLOCK)
        self.layers = tuple(map(str, range(options.layers)))
        self.width = options.width
        self.device = torch.device("cpu")
        self.dtype = np.dtype("float32")
        self.paths = [file] * options.layers


def draw_file(file: Path, options: Options) -> None:
    rows = np.random.default_rng(0).standard_normal((10_000, options.width), dtype=np.float32)
    with file.open("wb") as opened:
        for begin in range(0, options.tokens, len(rows)):
            opened.write(rows[: options.tokens - begin].tobytes())


def draw_texts(tokens: int) -> ProbeData:
    random = np.random.default_rng(0)
    count = tokens // LENGTH
    ids = random.integers(30_000, size=(count, LENGTH)).astype(np.int32)
    targets = random.integers(CLASSES, size=count * LENGTH)
    return ProbeData(list(ids), [np.arange(LENGTH)] * count, targets)


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "VmHWM" in line) / 1024


def main(options: Options) -> None:
    if options.folder is None:
        with tempfile.TemporaryDirectory() as name:
            draw_file(Path(name, "layer.bin"), options)
            subprocess.run(
                [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--folder", name], check=True
            )
        return
    file = options.folder / "layer.bin"
    held_out = options.tokens // 50
    sizes = (options.tokens, held_out, held_out)
    parts = [RandomActivations(file, draw_texts(tokens), options) for tokens in sizes]
    training, validation, test = (part.texts for part in parts)
    task = ProbeTask(
        "random", (training, validation, test), tuple(map(str, range(CLASSES))), ("accuracy",)
    )
    before = peak_mib()
    begin = time.perf_counter()
    learning = ProbeTraining(epochs=1, batch=4096)
    ways = ("model", "shuffled labels")
    run = ProbeRun(task, range(options.seeds), learning)
    run.train(parts, ways)
    assert len(run.scores) == 2 * options.layers
    print(
        f"Probes of {options.tokens:,} tokens, {options.layers} layers of width {options.width}; "
        f"{machine()}"
    )
    print(
        f"  peak memory {peak_mib():,.0f} MiB; before the probes, with the texts, {before:,.0f} MiB"
    )
    print(
        f"  probes of {options.seeds} seed(s) and of shuffled labels, one epoch: "
        f"{time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
