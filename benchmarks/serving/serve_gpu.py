"""Serving on a GPU: GPT-2 124M with random weights in bf16, 256 requests at once, 128 tokens in and
128 out.

python -m benchmarks.serving.serve_gpu python -m benchmarks.serving.serve_gpu --preset gpt-tiny
--device cpu --precision float32 --clients 8 --prompt 16 --words 16

The same load on the engine alone, over HTTP with whole answers, and over HTTP with streamed ones;
every turn has new prompts, drawn at random. Then what the server adds to a token of one client,
against the bare loop.
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
class Options:
    preset: str = "gpt2"
    device: str = "cuda"
    precision: str = "bf16"
    clients: int = 256
    prompt: int = 128
    words: int = 128
    turns: int = 7
    processes: int = 4
    """Of the load."""
    cache: float = 4.0
    """GiB."""
    bare_turns: int = 9


def made_up_words(count: int) -> Tokenizer:
    """So many tokens: bytes, then letters in twos, threes and fours; no end-of-text."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = chain.from_iterable(product(string.ascii_letters, repeat=size) for size in (2, 3, 4))
    tokens = [*bytes_, *map("".join, islice(letters, count - len(bytes_)))]
    inner = tokenizers.Tokenizer(
        models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[])
    )
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return Tokenizer(inner)


def new_prompts(count: int, options: Options, vocabulary: int) -> list[list[int]]:
    return torch.randint(vocabulary, (count, options.prompt)).tolist()


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return low, middle, high


def report(name: str, speeds: list[float], waits: list[float]) -> None:
    low, middle, high = quartiles(speeds)
    said = f"  {name:28} {middle:9,.0f} tokens/s (quartiles {low:,.0f}, {high:,.0f})"
    if waits:
        waits.sort()
        said += (
            f"   first text p50 {at(waits, 0.5) * 1e3:.1f} ms, p99 {at(waits, 0.99) * 1e3:.1f} ms"
        )
    print(said, flush=True)


def engine_alone(model: GPT, tokenizer: Tokenizer, options: Options) -> None:
    """Without HTTP: all are asked at once, from this very process."""
    host = ModelHost(cache=int(options.cache * 2**30), rows=options.clients)
    host.add("model", lambda: (model, tokenizer))
    host.start()
    while host.entries["model"].state == "loading":
        time.sleep(0.1)
    speeds = []
    for turn in range(options.turns + 2):
        prompts = new_prompts(options.clients, options, model.config.vocabulary)
        asks = [
            GenerationRequest(
                prompt=each, max_tokens=options.words, sampling=SamplingParams(temperature=0)
            )
            for each in prompts
        ]
        begin = time.perf_counter()
        handles = [host.submit("model", ask) for ask in asks]
        said = sum(len(chunk.tokens) for handle in handles for chunk in handle)
        seconds = time.perf_counter() - begin
        assert said == options.clients * options.words, said
        if turn >= 2:
            speeds.append(said / seconds)
    host.close()
    report("the engine, no HTTP", speeds, [])


def over_http(server: Server, name: str, options: Options, vocabulary: int, **how: bool) -> None:
    found = []
    for turn in range(options.turns + 2):
        figures = loaded(
            server,
            new_prompts(options.clients, options, vocabulary),
            options,
            options.clients,
            **how,
        )
        found += [figures] if turn >= 2 else []
    streamed = [wait for each in found for wait in each.first] if how.get("stream") else []
    report(name, [each.speed for each in found], streamed)


def loaded(
    server: Server, prompts: list[list[int]], options: Options, clients: int, stream: bool = False
) -> Figures:
    load = Load(server.url, "model", [*prompts], clients, len(prompts), options.words, stream)
    load.processes = min(options.processes, clients)
    with server.awake():
        return measure(load)


def over_bare(server: Server, model: GPT, options: Options) -> None:
    def bare(prompts: list[list[int]]) -> None:
        for prompt in prompts:
            assert (
                sum(1 for _ in stream(model, [prompt], length=options.words, temperature=0))
                == options.words
            )

    added, alone = [], []
    for turn in range(options.bare_turns + 2):
        prompts = new_prompts(8, options, model.config.vocabulary)
        works: dict[str, Callable[[], float]] = {
            "bare": lambda: clock(lambda: bare(prompts), options.device),  # noqa: B023
            "served": lambda: loaded(server, prompts, options, 1, stream=True).seconds,  # noqa: B023
        }
        took = {
            name: works[name]() * 1e3 / 8 / options.words
            for name in (works if turn % 2 else reversed(works))
        }
        if turn >= 2:
            added.append(took["served"] - took["bare"])
            alone.append(took["bare"])
    low, middle, high = quartiles(added)
    print(
        f"  one client: a token takes {statistics.median(alone):.3f} ms in the bare loop, and the server adds"
        f" {middle:.3f} ms (quartiles {low:.3f}, {high:.3f})",
        flush=True,
    )


def main(options: Options) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        print("serve_gpu.py: there is no GPU here, so nothing is measured")
        return
    torch.manual_seed(0)
    config = preset(options.preset)
    model, tokenizer = build(config).eval(), made_up_words(config.vocabulary)
    assert isinstance(model, GPT)
    many = f"{options.clients} requests at once"
    print(
        f"{options.preset}, random weights, {options.precision}, {options.prompt} in, {options.words} out; {machine()}"
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
        server = running.enter_context(started(command, threads=1))
        over_http(server, "HTTP, whole answers", options, config.vocabulary)
        over_http(server, "HTTP, streamed", options, config.vocabulary, stream=True)
        over_bare(server, model, options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
