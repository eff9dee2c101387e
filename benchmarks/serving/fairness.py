"""Two models of one server share its engine thread: how long a tiny model takes beside SmolLM2.

    python -m benchmarks.serving.fairness
    python -m benchmarks.serving.fairness --rounds 0 --preset gpt2 --device cuda    only the jobs

Measures 40 tokens of a tiny GPT alone, beside a stream and beside a long prompt. With fair shares
of time the tiny model gets half of the thread: it takes twice the time of its own steps, and one
step of the other model. The tokens of the other model are counted as well.

Then how long streams stop while jobs look inside their model, as /v1/attention does: the longest
time between two tokens of any of eight streams, without and with jobs.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import tyro

import qkv
from benchmarks.harness import machine
from benchmarks.serving.serve_gpu import random_tokenizer
from qkv.generation.sampling_params import SamplingParams
from qkv.insight.inspect.model_input import Reading, make_side
from qkv.insight.look import look
from qkv.models import GPT, GPTConfig, build, preset
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
    jobs: int = 5
    """Jobs that look inside a model, one after the other."""
    streams: int = 8
    text: int = 256
    """Tokens of the text that a job looks at."""
    preset: str = ""
    """A model with random weights for the jobs; empty takes SmolLM2."""
    device: str = "cpu"


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
        len(chunk.token_ids)
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


def job_model(options: Options) -> tuple[GPT, Tokenizer]:
    """The model that jobs look inside."""
    if not options.preset:
        model, tokenizer = qkv.load("smollm2")
    else:
        config = preset(options.preset)
        model, tokenizer = build(config), random_tokenizer(config.vocabulary)
    assert isinstance(model, GPT)
    assert isinstance(tokenizer, Tokenizer)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    return model.eval().to(options.device, dtype), tokenizer


class Arrivals:
    """The times at which the tokens of a client arrive, who sends its request again and again."""

    def __init__(self, host: ModelHost, request: GenerationRequest) -> None:
        self.host = host
        self.request = request
        self.times: list[float] = []
        self.stopped = False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        while not self.stopped:
            handle = self.host.submit("model", self.request)
            for _ in handle:
                self.times.append(time.perf_counter())
                if self.stopped:
                    handle.abort()
                    break

    def longest_gap(self, begin: float, end: float) -> float:
        times = [time for time in self.times if begin <= time <= end]
        return max((later - earlier for earlier, later in pairwise(times)), default=end - begin)


def beside_jobs(options: Options) -> None:
    """The longest gaps of streams without jobs and with them."""
    model, tokenizer = job_model(options)
    host = ModelHost(cache=1 << 30)
    host.add("model", lambda: (model, tokenizer)).join()
    host.start()
    most = tokenizer.vocabulary - 1
    ids = [1 + 7919 * index % most for index in range(options.text)]

    def look_inside(model: Any, tokenizer: Tokenizer) -> object:
        with torch.inference_mode(False), torch.enable_grad():
            reading = Reading(make_side(tokenizer, ids))
            return look(model, reading=reading, tokenizer=tokenizer, layers=[0], walks=False)

    def gaps(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        end = time.perf_counter()
        return max(stream.longest_gap(begin, end) for stream in streams)

    host.submit_job("model", look_inside).wait()
    length = model.config.context or 1024
    request = GenerationRequest(
        prompt=ids[:5], max_tokens=length - 8, sampling=SamplingParams(minimum=length), stream=True
    )
    streams = [Arrivals(host, request) for _ in range(options.streams)]
    while any(len(stream.times) < 8 for stream in streams):
        time.sleep(0.01)
    seconds = []
    alone = gaps(lambda: time.sleep(0.5))

    def all_jobs() -> None:
        for _ in range(options.jobs):
            begin = time.perf_counter()
            host.submit_job("model", look_inside).wait()
            seconds.append(time.perf_counter() - begin)

    beside = gaps(all_jobs)
    for stream in streams:
        stream.stopped = True
    host.close()
    print(
        f"{options.streams} streams of {options.preset or 'SmolLM2'} beside {options.jobs} jobs "
        f"over {options.text} tokens, {statistics.median(seconds) * 1e3:.0f} ms each; {machine()}\n"
        f"  longest gap between two tokens: alone {alone * 1e3:.1f} ms, beside jobs "
        f"{beside * 1e3:.1f} ms"
    )


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    if options.jobs:
        beside_jobs(options)
    if options.rounds:
        two_models(options)


def two_models(options: Options) -> None:
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
