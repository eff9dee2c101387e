"""The decode step of few kernels (nn/decode/) alone: a GPU decodes with and without it.

python -m benchmarks.decoding.decode_step_gpu
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
import tyro

from benchmarks.harness import clock, machine
from qkv.generation import decode_cuda_graph, generate
from qkv.models import build, preset
from qkv.nn.decode import decode_step


@dataclass
class Options:
    rounds: int = 9
    tokens: int = 256
    """Tokens to decode."""


def measure_decode_step(options: Options) -> None:
    installed = decode_step.installed
    for name in ("gpt2", "gpt2-xl"):
        config = replace(preset(name), dropout=0.0, attention_dropout=0.0)
        with torch.device("cuda"):
            model = build(config).eval().bfloat16()
            prompt = torch.randint(config.vocabulary, (1, 128))

        write = partial(generate, model, prompt, length=options.tokens, temperature=0.0)
        seconds = {}
        for path in ("few kernels", "plain"):  # a CUDA graph each
            decode_cuda_graph.graphs.clear()
            if path == "plain":
                decode_step.installed = lambda *args: nullcontext()

            write()
            times = [clock(write, "cuda") for _ in range(options.rounds)]
            seconds[path] = statistics.median(times)
            decode_step.installed = installed

        fused = options.tokens / seconds["few kernels"]
        plain = options.tokens / seconds["plain"]
        print(
            f"  decode step, {name:10} {fused:8,.0f} tokens/s, plain blocks {plain:8,.0f}: "
            f"x {fused / plain:.2f}",
            flush=True,
        )


def main(options: Options) -> None:
    if not torch.cuda.is_available():
        print("decode_step_gpu.py: no GPU found, nothing is measured")
        return

    print(f"with and without the kernels of the decode step; {machine()}", flush=True)
    measure_decode_step(options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
