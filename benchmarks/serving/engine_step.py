"""Where the time of the engine goes: adding requests, prefill steps and decode steps.

    python -m benchmarks.serving.engine_step
    python -m benchmarks.serving.engine_step --preset gpt-tiny --device cpu --precision float32
    python -m benchmarks.serving.engine_step --host-profile --kernels

All requests arrive at once, and one thread runs the engine, without a server. The settings are
those of `serve_gpu`; `--kinds` are the sampling parameters.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from dataclasses import dataclass

import torch
import tyro

from benchmarks.harness import machine
from benchmarks.serving.serve_gpu import DTYPES, Workload, new_prompts, random_tokenizer
from qkv.generation import SamplingParams
from qkv.models import build, preset
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle
from qkv.serving.garbage import freeze_loaded

KINDS = {
    "greedy": [SamplingParams(temperature=0)],
    "temperature": [SamplingParams(temperature=0.8)],
    "top-k": [SamplingParams(temperature=0.8, top_k=200)],
    "top-p": [SamplingParams(temperature=0.8, top_p=0.95)],
    "mixed": [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.7, top_k=50),
        SamplingParams(temperature=1.1, top_p=0.9),
        SamplingParams(temperature=0.9, top_k=200, top_p=0.95),
        SamplingParams(temperature=1.0, min_p=0.05),
    ],
}


@dataclass
class Options(Workload):
    turns: int = 5
    kinds: tuple[str, ...] = ("greedy",)
    """Sampling parameters: greedy, temperature, top-k, top-p or mixed."""
    stream: bool = False
    """Requests stream their tokens."""
    host_profile: bool = False
    """Print the functions that take most of the host's time in the last turn."""
    kernels: bool = False
    """Print the kernels that take most of the device's time in the last turn."""


@dataclass
class Turn:
    """Seconds of one turn."""

    adding: float
    prefill: float
    decode: float
    whole: float
    prefill_steps: int
    decode_steps: int


def run_turn(engine: Engine, options: Options, kind: str) -> Turn:
    """All requests from their arrival to their last token."""
    prompts = new_prompts(options.clients, options, engine.model.config.vocabulary)
    params = KINDS[kind]
    requests = []
    for row, prompt in enumerate(prompts):
        requests.append(
            GenerationRequest(
                prompt=prompt,
                max_tokens=options.tokens,
                sampling=params[row % len(params)],
                seed=row,
                stream=options.stream,
            )
        )

    begin = time.perf_counter()
    for request in requests:
        engine.check(request)
        engine.add_request(RequestHandle(request))

    added = time.perf_counter()
    prefill_steps = 0
    while engine.scheduler.waiting or any(not s.decoding for s in engine.scheduler.running):
        engine.step()
        prefill_steps += 1

    if options.device == "cuda":
        torch.cuda.synchronize()

    read = time.perf_counter()
    decode_steps = 0
    while engine.busy:
        engine.step()
        decode_steps += 1

    end = time.perf_counter()
    return Turn(added - begin, read - added, end - read, end - begin, prefill_steps, decode_steps)


def report(kind: str, turns: list[Turn], options: Options) -> None:
    def median(name: str) -> float:
        return statistics.median(getattr(turn, name) for turn in turns)

    tokens = options.clients * options.tokens
    first = turns[0]
    print(
        f"  {kind:12} {tokens / median('whole'):9,.0f} tokens/s; "
        f"adding {median('adding') * 1e3:.1f} ms, "
        f"{first.prefill_steps} prefill steps {median('prefill') * 1e3:.1f} ms, "
        f"{first.decode_steps} decode steps {median('decode') * 1e3:.1f} ms "
        f"({median('decode') * 1e3 / first.decode_steps:.3f} ms each)",
        flush=True,
    )


def print_kernels(engine: Engine, options: Options, kind: str) -> None:
    """Time by kernel of one turn."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run_turn(engine, options, kind)

    table = profiler.key_averages().table(
        sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90
    )
    for line in table.splitlines():
        cells = line.split()
        print(line[:92], *cells[-4:])


def main(options: Options) -> None:
    torch.manual_seed(0)
    config = preset(options.preset)
    model = build(config).eval().to(options.device, DTYPES[options.precision])
    updates = []
    engine = Engine(
        model,
        random_tokenizer(config.vocabulary),
        lambda handle, update: updates.append(update),
        cache=int(options.cache * 2**30),
        rows=options.clients,
    )
    begin = time.perf_counter()
    engine.runner.warm_up(options.clients)
    print(
        f"{options.preset}, {options.clients} x {options.prompt} in, {options.tokens} out, "
        f"{options.precision}; {machine()}; warm-up {time.perf_counter() - begin:.1f} s"
    )
    freeze_loaded()
    for kind in options.kinds:
        turns = []
        for turn in range(options.turns + 2):
            updates.clear()
            result = run_turn(engine, options, kind)
            for update in updates:
                if isinstance(update, Exception):
                    raise update

            if turn >= 2:
                turns.append(result)

        report(kind, turns, options)

    if options.kernels:
        print_kernels(engine, options, options.kinds[-1])

    if options.host_profile:
        profiler = cProfile.Profile()
        profiler.runcall(run_turn, engine, options, options.kinds[-1])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
