"""Each fast path that is installed from outside a block, alone: with it and without it.

    python -m benchmarks.decoding.fast_paths

The first token alone through the last block of a classifier (nn/first_token.py) is measured on any
machine, the decode block of five kernels (nn/decode_block.py) on a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
import tyro

from benchmarks.harness import clock, machine
from qkv.generation import decode_cuda_graph, generate
from qkv.models import BERT, BERTConfig, build, preset
from qkv.nn import decode_block


@dataclass
class Options:
    rounds: int = 9
    tokens: int = 256
    """Tokens to decode."""


def alternate(
    with_it: Callable[[], object], without: Callable[[], object], rounds: int, device: str
) -> tuple[float, float]:
    """Median seconds of both, in turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        seconds[0].append(clock(with_it, device))
        seconds[1].append(clock(without, device))

    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


@torch.inference_mode()
def measure_first_token(options: Options, device: str) -> None:
    for name, width, depth, rows, length in (
        ("BERT-base", 768, 12, 8, 64),
        ("MiniLM, 6 layers", 384, 6, 8, 64),
        ("MiniLM, short texts", 384, 6, 8, 16),
    ):
        config = BERTConfig(
            vocabulary=30522, context=512, width=width, depth=depth, heads=12, mlm_head=False
        )
        with torch.device(device):
            model = BERT(config).eval()
            ids = torch.randint(30000, (rows, length))

        first, every = alternate(
            partial(model.hidden, ids, first=True),
            partial(model.hidden, ids),
            options.rounds,
            device,
        )
        print(
            f"  first token, {name:20} {first * 1e3:8.2f} ms, all tokens {every * 1e3:8.2f} ms: "
            f"x {every / first:.3f}",
            flush=True,
        )


def measure_decode_block(options: Options) -> None:
    installed = decode_block.installed
    for name in ("gpt2", "gpt2-xl"):
        config = replace(preset(name), dropout=0.0, attention_dropout=0.0)
        with torch.device("cuda"):
            model = build(config).eval().bfloat16()
            prompt = torch.randint(config.vocabulary, (1, 128))

        write = partial(generate, model, prompt, length=options.tokens, temperature=0.0)
        seconds = {}
        for path in ("five kernels", "plain"):  # a CUDA graph each
            decode_cuda_graph.graphs.clear()
            if path == "plain":
                decode_block.installed = nullcontext

            write()
            times = [clock(write, "cuda") for _ in range(options.rounds)]
            seconds[path] = statistics.median(times)
            decode_block.installed = installed

        fused = options.tokens / seconds["five kernels"]
        plain = options.tokens / seconds["plain"]
        print(
            f"  decode block, {name:10} {fused:8,.0f} tokens/s, plain blocks {plain:8,.0f}: "
            f"x {fused / plain:.2f}",
            flush=True,
        )


def main(options: Options) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"fast paths, with and without; {machine()}", flush=True)
    measure_first_token(options, device)
    if device == "cuda":
        measure_decode_block(options)
    else:
        print("  decode block: it needs a GPU, not measured")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
