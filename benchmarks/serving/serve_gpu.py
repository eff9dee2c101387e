"""Serving on a GPU: GPT-2 124M with random weights in bf16, 256 requests of 128 + 128 tokens.

    python -m benchmarks.serving.serve_gpu
    python -m benchmarks.serving.serve_gpu --preset gpt-tiny --device cpu --precision float32 \\
        --clients 8 --prompt 16 --tokens 16

Measures the engine alone, HTTP with whole responses and HTTP with streams; every turn has new
random prompts. Then the time that the server adds to a token of a single client, compared with the
bare decoding loop.
"""

from __future__ import annotations

import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice, product

import tokenizers
import torch
import tyro
from tokenizers import decoders, models, pre_tokenizers

import qkv
from benchmarks.harness import clock, machine
from benchmarks.serving.load import Figures, Load, at, measure
from benchmarks.serving.server_process import Server, started
from qkv.generation import SamplingParams, stream
from qkv.models import GPT, build, preset
from qkv.serving.engine.generation_request import GenerationRequest
from qkv.serving.model_host import ModelHost
from qkv.text import Tokenizer

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


@dataclass
class Workload:
    """A model with random weights, and requests of random prompts."""

    preset: str = "gpt2"
    device: str = "cuda"
    precision: str = "bf16"
    clients: int = 256
    prompt: int = 128
    tokens: int = 128
    cache: float = 4.0
    """GiB of KV cache."""


@dataclass
class Options(Workload):
    turns: int = 7
    processes: int = 4
    """Processes that generate the load."""
    bare_turns: int = 9
    front_ends: int | None = None
    """Processes that handle HTTP; 0 is a thread beside the engine, None the server's default."""


def random_tokenizer(count: int) -> Tokenizer:
    """A tokenizer of `count` tokens: bytes, then strings of 2 to 4 letters; no end token."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = chain.from_iterable(product(string.ascii_letters, repeat=size) for size in (2, 3, 4))
    tokens = [*bytes_, *map("".join, islice(letters, count - len(bytes_)))]
    inner = tokenizers.Tokenizer(
        models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def new_prompts(count: int, options: Workload, vocabulary: int) -> list[list[int]]:
    return torch.randint(vocabulary, (count, options.prompt)).tolist()


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def report(name: str, speeds: list[float], waits: list[float]) -> None:
    low, middle, high = quartiles(speeds)
    line = f"  {name:28} {middle:9,.0f} tokens/s (quartiles {low:,.0f}, {high:,.0f})"
    if waits:
        waits.sort()
        line += (
            f"   first text p50 {at(waits, 0.5) * 1e3:.1f} ms, p99 {at(waits, 0.99) * 1e3:.1f} ms"
        )
    print(line, flush=True)


def engine_alone(model: GPT, tokenizer: Tokenizer, options: Options) -> None:
    """The engine without HTTP: all requests at once, from this process."""
    host = ModelHost(cache=int(options.cache * 2**30), rows=options.clients)
    host.add("model", lambda: (model, tokenizer))
    host.start()
    while host.entries["model"].state == "loading":
        time.sleep(0.1)
    speeds = []
    for turn in range(options.turns + 2):
        prompts = new_prompts(options.clients, options, model.config.vocabulary)
        requests = []
        for prompt in prompts:
            requests.append(
                GenerationRequest(
                    prompt=prompt, max_tokens=options.tokens, sampling=SamplingParams(temperature=0)
                )
            )
        begin = time.perf_counter()
        handles = [host.submit("model", request) for request in requests]
        generated = sum(len(chunk.token_ids) for handle in handles for chunk in handle)
        seconds = time.perf_counter() - begin
        assert generated == options.clients * options.tokens, generated
        if turn >= 2:
            speeds.append(generated / seconds)
    host.close()
    report("the engine, no HTTP", speeds, [])


def over_http(
    server: Server, name: str, options: Options, vocabulary: int, *, stream: bool = False
) -> None:
    measured: list[Figures] = []
    for turn in range(options.turns + 2):
        prompts = new_prompts(options.clients, options, vocabulary)
        figures = run_load(server, prompts, options, options.clients, stream=stream)
        if turn >= 2:
            measured.append(figures)
    waits: list[float] = []
    if stream:
        for figures in measured:
            waits += figures.first
    report(name, [figures.speed for figures in measured], waits)


def run_load(
    server: Server, prompts: list[list[int]], options: Options, clients: int, stream: bool = False
) -> Figures:
    load = Load(server.url, "model", [*prompts], clients, len(prompts), options.tokens, stream)
    load.processes = min(options.processes, clients)
    with server.awake():
        return measure(load)


def over_bare(server: Server, model: GPT, options: Options) -> None:
    def bare(prompts: list[list[int]]) -> None:
        for prompt in prompts:
            assert (
                sum(1 for _ in stream(model, [prompt], length=options.tokens, temperature=0))
                == options.tokens
            )

    added: list[float] = []
    alone: list[float] = []
    for turn in range(options.bare_turns + 2):
        prompts = new_prompts(8, options, model.config.vocabulary)
        works: dict[str, Callable[[], float]] = {
            "bare": lambda: clock(lambda: bare(prompts), options.device),  # noqa: B023
            "served": lambda: (
                run_load(
                    server,
                    prompts,  # noqa: B023
                    options,
                    1,
                    stream=True,
                ).seconds
            ),
        }
        took = {
            name: works[name]() * 1e3 / 8 / options.tokens
            for name in (works if turn % 2 else reversed(works))
        }
        if turn >= 2:
            added.append(took["served"] - took["bare"])
            alone.append(took["bare"])
    low, middle, high = quartiles(added)
    print(
        f"  one client: a token takes {statistics.median(alone):.3f} ms in the bare loop, and the "
        f"server adds {middle:.3f} ms (quartiles {low:.3f}, {high:.3f})",
        flush=True,
    )


def main(options: Options) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        print("serve_gpu.py: no GPU is available, so nothing is measured")
        return
    torch.manual_seed(0)
    config = preset(options.preset)
    model = build(config).eval()
    tokenizer = random_tokenizer(config.vocabulary)
    assert isinstance(model, GPT)
    many = f"{options.clients} requests at once"
    print(
        f"{options.preset}, random weights, {options.precision}, {options.prompt} tokens in, "
        f"{options.tokens} out; {machine()}"
    )
    print(f"  {many}, {options.turns} turns", flush=True)
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory())
        qkv.save(model, f"{folder}/model", tokenizer=tokenizer)
        model = model.to(options.device, DTYPES[options.precision])
        engine_alone(model, tokenizer, options)
        command = [
            sys.executable,
            "-m",
            "qkv",
            "serve",
            f"{folder}/model",
            "--device",
            options.device,
        ]
        command += ["--precision", options.precision, "--rows", str(options.clients)]
        command += ["--cache", str(options.cache)]
        if options.front_ends is not None:
            command += ["--front-ends", str(options.front_ends)]
        server = running.enter_context(started(command, threads=1))
        over_http(server, "HTTP, whole responses", options, config.vocabulary)
        over_http(server, "HTTP, streamed", options, config.vocabulary, stream=True)
        over_bare(server, model, options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
