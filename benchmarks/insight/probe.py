"""How much memory probes take: a million tokens of twelve layers of width 768, from files.

python -m benchmarks.insight.probe                      on a CPU, 3 GB of disk; a few minutes

The probes are those of `qkv probe`: for each layer a linear one of the true and one of the shuffled
labels, one epoch through all tokens, then tested. What the layers say is drawn at random: memory
and time do not depend on it. To spare the disk, all layers read the same file. Peak memory is that
of a process of its own.
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
from qkv.insight.probing.linear_probe import Learning
from qkv.insight.probing.probe_model import asked
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
    """Used by the benchmark itself, in a process of its own."""


class Drawn(ActivationsOnDisk):
    """Files that no model wrote."""

    def __init__(self, file: Path, texts: ProbeData, options: Options) -> None:
        self.texts, self.blocks = texts, texts.blocks(BLOCK)
        self.layers = tuple(map(str, range(options.layers)))
        self.width, self.device, self.store = (
            options.width,
            torch.device("cpu"),
            np.dtype("float32"),
        )
        self.files = [file] * options.layers


def draw_file(file: Path, options: Options) -> None:
    some = np.random.default_rng(0).standard_normal((10_000, options.width), dtype=np.float32)
    with file.open("wb") as opened:
        for begin in range(0, options.tokens, len(some)):
            opened.write(some[: options.tokens - begin].tobytes())


def draw_texts(tokens: int) -> ProbeData:
    random, count = np.random.default_rng(0), tokens // LENGTH
    ids = random.integers(30_000, size=(count, LENGTH)).astype(np.int32)
    return ProbeData(
        list(ids), [np.arange(LENGTH)] * count, random.integers(CLASSES, size=count * LENGTH)
    )


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
    file, held_out = options.folder / "layer.bin", options.tokens // 50
    parts = [
        Drawn(file, draw_texts(tokens), options) for tokens in (options.tokens, held_out, held_out)
    ]
    training, validation, test = (part.texts for part in parts)
    question = ProbeTask(
        "drawn", (training, validation, test), tuple(map(str, range(CLASSES))), ("accuracy",)
    )
    before, begin = peak_mib(), time.perf_counter()
    learning = Learning(epochs=1, batch=4096)
    found = asked(parts, question, ("model", "shuffled labels"), range(options.seeds), learning)
    assert len(found.scores) == 2 * options.layers
    print(
        f"Probes of {options.tokens:,} tokens, {options.layers} layers of width {options.width}; {machine()}"
    )
    print(
        f"  peak memory {peak_mib():,.0f} MiB; before the probes, with the texts, {before:,.0f} MiB"
    )
    print(
        f"  probes of {options.seeds} seed(s) and of shuffled labels, one epoch: {time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
