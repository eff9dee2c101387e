"""Two models of one server share its engine thread: how long a tiny model takes beside SmolLM2.

python -m benchmarks.serving.fairness      40 tokens of a tiny GPT: alone, beside a stream, beside a
prompt

Fair by time, the tiny model has half of the thread: twice the time of its own steps, and a step of
the other model that is under way. The other model pays for it: its tokens are counted, too.
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

LIKELIEST = SamplingParams(temperature=0)


@dataclass
class Options:
    tokens: int = 40
    prompt: int = 1800
    """Tokens of the long prompt."""
    rounds: int = 5
    threads: int = 2


def started() -> ModelHost:
    model, tokenizer = qkv.load("smollm2")
    assert isinstance(model, GPT)
    assert isinstance(tokenizer, Tokenizer)
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=256, width=64, depth=2, heads=4)
    torch.manual_seed(0)
    host = ModelHost(cache=1 << 29)
    host.add("smollm2", lambda: (model, tokenizer))
    host.add("tiny", lambda: (GPT(config), tokenizer))
    host.start()
    while any(each.state != "ready" for each in host.entries.values()):
        time.sleep(0.1)
    return host


def of_tiny(host: ModelHost, tokens: int) -> float:
    """Seconds until a tiny model has generated so many tokens."""
    begin = time.perf_counter()
    found = sum(
        len(chunk.tokens)
        for chunk in host.submit(
            "tiny", GenerationRequest(prompt=[1], max_tokens=tokens, sampling=LIKELIEST)
        )
    )
    assert found == tokens
    return time.perf_counter() - begin


def beside(
    host: ModelHost, other: GenerationRequest, ready: Callable[[RequestHandle], object], tokens: int
) -> tuple[float, float]:
    """The same while SmolLM2 works on another request; and how many tokens a second that one read
    or generated.
    """
    handle, engine = host.submit("smollm2", other), host.entries["smollm2"].engine
    assert engine is not None
    ready(handle)
    before = engine.counts["prompt_tokens"] + engine.counts["said_tokens"]
    seconds = of_tiny(host, tokens)
    done = engine.counts["prompt_tokens"] + engine.counts["said_tokens"] - before
    handle.abort()
    while engine.busy:
        time.sleep(0.01)
    return seconds, done / seconds


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    host = started()
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(options.rounds + 1):
        prompt = [
            1 + (turn * 7919 + place) % 40_000 for place in range(options.prompt)
        ]  # nothing is cached
        stream = GenerationRequest(prompt=prompt[:5], max_tokens=2000, sampling=LIKELIEST, stream=True)
        works: dict[str, Callable[[], tuple[float, float]]] = {
            "alone": lambda: (of_tiny(host, options.tokens), 0.0),
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
            found.setdefault(name, []).extend(
                [measured] if turn else []
            )  # the first is for what is allocated once
    host.close()
    print(f"{options.tokens} tokens of a tiny GPT, float32; {options.rounds} rounds; {machine()}")
    alone = statistics.median(seconds for seconds, _ in found["alone"])
    for name, measured in found.items():
        seconds = statistics.median(each for each, _ in measured)
        other = statistics.median(each for _, each in measured)
        print(
            f"  {name:32} {seconds * 1e3:7.0f} ms   x {seconds / alone:5.1f}   SmolLM2 {other:6.1f} tokens/s"
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
