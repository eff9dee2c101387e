"""`qkv.generation.generate` against the engine with one client: the same rows, greedy.

    python -m benchmarks.serving.one_client
    python -m benchmarks.serving.one_client --preset gpt2 --rows 1 8 --tokens 32

GPT-2 124M in bf16 on a GPU, a small preset in float32 on a CPU; random weights. Every turn has new
random prompts, so that the engine finds no prefix in its cache, and the order alternates. The
engine runs in this thread, without a queue, HTTP or a second client: what is measured is what
`generate` would cost if it were the engine.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tyro

from benchmarks.harness import clock, machine
from benchmarks.serving.serve_gpu import random_tokenizer
from qkv.generation import SamplingParams, generate
from qkv.models import GPT, build, preset
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle
from qkv.text import Tokenizer

GREEDY = SamplingParams(temperature=0)


@dataclass
class Options:
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    preset: str | None = None
    """gpt2 on a GPU, gpt-small on a CPU."""
    rows: tuple[int, ...] = (1, 32)
    prompt: int | None = None
    """Tokens in: 128 on a GPU, 32 on a CPU."""
    tokens: int | None = None
    """Tokens out: 256 on a GPU, 32 on a CPU."""
    turns: int = 5
    cache: float = 1.0
    """GiB of KV cache of the engine."""


class OneClient:
    """An engine whose only client waits for all rows."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, rows: int, cache: float) -> None:
        self.generated: dict[int, list[int]] = {}
        self.engine = Engine(model, tokenizer, self.emit, cache=int(cache * 2**30), rows=rows)
        self.engine.runner.warm_up(rows)

    def emit(self, handle: RequestHandle, update: Any) -> None:
        if isinstance(update, Exception):
            raise update
        self.generated[handle.id] = list(update.token_ids)

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """The new ids of each prompt."""
        handles = []
        for prompt in prompts:
            request = GenerationRequest(prompt=prompt, max_tokens=tokens, sampling=GREEDY)
            self.engine.check(request)
            handles.append(RequestHandle(request))
            self.engine.add_request(handles[-1])

        while self.engine.step():
            pass

        return [self.generated.pop(handle.id) for handle in handles]


def compare(model: GPT, client: OneClient, rows: int, options: Options) -> None:
    """Print the median speeds, their ratio, and the share of rows with equal tokens."""
    assert options.prompt is not None
    assert options.tokens is not None
    seconds: dict[str, list[float]] = {"generate": [], "engine": []}
    equal = 0
    for turn in range(options.turns + 2):
        prompts = torch.randint(model.config.vocabulary, (rows, options.prompt)).tolist()
        results: dict[str, list[list[int]]] = {}

        def run_generate() -> None:
            results["generate"] = generate(model, prompts, length=options.tokens, temperature=0)  # noqa: B023

        def run_engine() -> None:
            results["engine"] = client.generate(prompts, options.tokens)  # noqa: B023

        works: dict[str, Callable[[], None]] = {"generate": run_generate, "engine": run_engine}
        for name in works if turn % 2 else reversed(works):
            took = clock(works[name], options.device)
            if turn >= 2:
                seconds[name].append(took)

        pairs = zip(results["generate"], results["engine"], strict=True)
        equal += sum(one == other for one, other in pairs)

    speed = {}
    for name, times in seconds.items():
        speed[name] = rows * options.tokens / statistics.median(times)

    ratio = speed["engine"] / speed["generate"]
    share = equal / (rows * (options.turns + 2))
    print(
        f"  {rows:3} rows: generate {speed['generate']:9,.0f} tokens/s, "
        f"engine {speed['engine']:9,.0f} tokens/s, ratio {ratio:.2f}; "
        f"{share:.0%} of the rows have equal tokens",
        flush=True,
    )


def main(options: Options) -> None:
    on_gpu = options.device == "cuda"
    options.preset = options.preset or ("gpt2" if on_gpu else "gpt-small")
    options.prompt = options.prompt or (128 if on_gpu else 32)
    options.tokens = options.tokens or (256 if on_gpu else 32)
    torch.manual_seed(0)
    config = preset(options.preset)
    model = build(config).eval().to(options.device)
    assert isinstance(model, GPT)
    if on_gpu:
        model = model.bfloat16()

    print(
        f"{options.preset}, random weights, {options.prompt} tokens in, {options.tokens} out, "
        f"{options.turns} turns; {machine()}"
    )
    tokenizer = random_tokenizer(config.vocabulary)
    for rows in options.rows:
        compare(model, OneClient(model, tokenizer, rows, options.cache), rows, options)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
