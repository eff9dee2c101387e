"""Two models of one server share its engine thread: how long a tiny model takes beside SmolLM2.

    python -m benchmarks.serving.fairness

Measures 40 tokens of a tiny GPT alone, beside a stream and beside a long prompt. With fair shares
of time the tiny model gets half of the thread: it takes twice the time of its own steps, and one
step of the other model. The tokens of the other model are counted as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro

import qkv
from benchmarks.harness import machine
from qkv.generation.sampling_params import SamplingParams
from qkv.models import GPT, GPTConfig
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle
from qkv.serving.model_host import ModelHost
from qkv.text import Tokenizer

GREEDY = SamplingParams(temperature=0)


@dataclass
class Options:
    tokens: int = 40
    prompt: int = 1800
    """Tokens of the long prompt."""
    rounds: int = 5
    threads: int = 2


def started_host() -> ModelHost:
    model, tokenizer = qkv.load("smollm2")
    assert isinstance(model, GPT)
    assert isinstance(tokenizer, Tokenizer)
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=256, width=64, depth=2, heads=4)
    torch.manual_seed(0)
    host = ModelHost(cache=1 << 29)
    host.add("smollm2", lambda: (model, tokenizer))
    host.add("tiny", lambda: (GPT(config), tokenizer))
    host.start()
    while any(entry.state != "ready" for entry in host.entries.values()):
        time.sleep(0.1)
    return host


def time_tiny(host: ModelHost, tokens: int) -> float:
    """Seconds that the tiny model takes for a number of tokens."""
    begin = time.perf_counter()
    generated = sum(
        len(chunk.tokens)
        for chunk in host.submit(
            "tiny", GenerationRequest(prompt=[1], max_tokens=tokens, sampling=GREEDY)
        )
    )
    assert generated == tokens
    return time.perf_counter() - begin


def beside(
    host: ModelHost, other: GenerationRequest, ready: Callable[[RequestHandle], object], tokens: int
) -> tuple[float, float]:
    """The same while SmolLM2 runs another request, and the tokens per second of that request."""
    handle = host.submit("smollm2", other)
    engine = host.entries["smollm2"].engine
    assert engine is not None
    ready(handle)
    before = engine.counts["prompt_tokens"] + engine.counts["said_tokens"]
    seconds = time_tiny(host, tokens)
    done = engine.counts["prompt_tokens"] + engine.counts["said_tokens"] - before
    handle.abort()
    while engine.busy:
        time.sleep(0.01)
    return seconds, done / seconds


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    host = started_host()
    results: dict[str, list[tuple[float, float]]] = {}
    for round in range(options.rounds + 1):
        # A new prompt, so that nothing is cached
        prompt = [1 + (round * 7919 + index) % 40_000 for index in range(options.prompt)]
        stream = GenerationRequest(prompt=prompt[:5], max_tokens=2000, sampling=GREEDY, stream=True)
        works: dict[str, Callable[[], tuple[float, float]]] = {
            "alone": lambda: (time_tiny(host, options.tokens), 0.0),
            "beside a stream": lambda: beside(
                host,
                stream,  # noqa: B023
                lambda handle: next(iter(handle)),
                options.tokens,
            ),
            f"beside a prompt of {options.prompt:,} tokens": lambda: beside(
                host,
                GenerationRequest(prompt=prompt, max_tokens=1),  # noqa: B023
                lambda handle: None,
                options.tokens,
            ),
        }
        for name, work in works.items():
            measured = work()
            if round:  # the first one allocates memory
                results.setdefault(name, []).append(measured)
    host.close()
    print(f"{options.tokens} tokens of a tiny GPT, float32; {options.rounds} rounds; {machine()}")
    alone = statistics.median(seconds for seconds, _ in results["alone"])
    for name, measured in results.items():
        seconds = statistics.median(seconds for seconds, _ in measured)
        other = statistics.median(speed for _, speed in measured)
        print(
            f"  {name:32} {seconds * 1e3:7.0f} ms   x {seconds / alone:5.1f}"
            f"   SmolLM2 {other:6.1f} tokens/s"
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
