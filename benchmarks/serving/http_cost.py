"""What HTTP costs: processor time of the server around an engine that computes nothing.

    python -m benchmarks.serving.http_cost
    python -m benchmarks.serving.http_cost --clients 256 --profile FOLDER

The engine gives every request one token per step, so all time is spent on HTTP, validation, chunks,
text and events. Processor time of each thread of the server is read from the system: it hardly
depends on what else runs on the machine. Needs Linux.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import tyro

import qkv
from benchmarks.harness import machine
from benchmarks.serving.instant_engine import InstantEngine
from benchmarks.serving.load import Figures, Load, at, measure
from benchmarks.serving.serve_gpu import random_tokenizer
from benchmarks.serving.server_process import Server, started
from qkv.models import GPT, GPTConfig

VOCABULARY = 50_257


@dataclass
class Options:
    clients: int = 256
    prompt: int = 128
    tokens: int = 128
    turns: int = 5
    flags: str = ""
    """Further flags of `qkv serve`."""
    profile: str = ""
    """A file for the profile of the server's event loop."""


def serve_instantly(arguments: list[str]) -> None:
    """Body of the server's process: `qkv serve` with the instant engine."""
    from qkv.cli import main as qkv_main
    from qkv.serving import model_host

    model_host.Engine = InstantEngine  # type: ignore[attr-defined,assignment,misc]
    sys.argv = ["qkv", "serve", *arguments]
    qkv_main()


def thread_seconds(group: int) -> dict[str, float]:
    """Processor seconds of every thread in a group of processes."""
    seconds: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) != group:
                continue

            for thread in stat.parent.glob("task/*/schedstat"):
                name = f"{stat.parent.name}/{thread.parent.name}"
                seconds[name] = int(thread.read_text().split()[0]) * 1e-9
        except OSError:  # it ended meanwhile
            continue

    return seconds


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Seconds of the main thread and of the other threads of each process, largest first."""
    by_part: dict[str, float] = {}
    for name, seconds in after.items():
        process, _, thread = name.partition("/")
        part = f"{process} {'main' if process == thread else 'others'}"
        by_part[part] = by_part.get(part, 0.0) + seconds - before.get(name, 0.0)

    return by_part


def one_turn(server: Server, options: Options, *, stream: bool) -> tuple[Figures, dict[str, float]]:
    prompts = []
    for _ in range(options.clients):
        prompts.append([random.randrange(300, VOCABULARY) for _ in range(options.prompt)])

    load = Load(server.url, "model", [*prompts], options.clients, options.clients, options.tokens)
    load.stream = stream
    load.processes = 1
    with server.awake():
        before = thread_seconds(server.child.pid)
        figures = measure(load)
        return figures, spent(before, thread_seconds(server.child.pid))


def report(name: str, measured: list[tuple[Figures, dict[str, float]]], options: Options) -> None:
    tokens = options.clients * options.tokens
    speeds = [figures.speed for figures, _ in measured]
    print(f"  {name}: {statistics.median(speeds):,.0f} tokens/s on this machine")
    first = sorted(wait for figures, _ in measured for wait in figures.first)
    print(f"    first text p50 {at(first, 0.5) * 1e3:.0f} ms, p99 {at(first, 0.99) * 1e3:.0f} ms")
    for part in measured[0][1]:
        seconds = statistics.median(parts.get(part, 0.0) for _, parts in measured)
        print(
            f"    {part:16} {seconds:6.3f} s of processor time: {seconds / tokens * 1e6:6.2f} us "
            f"per token, {seconds / options.clients * 1e6:6.0f} us per request"
        )


def main(options: Options) -> None:
    config = GPTConfig(vocabulary=VOCABULARY, context=1024, width=8, depth=1, heads=1)
    print(f"{options.clients} requests at once, {options.prompt} + {options.tokens}; {machine()}")
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory())
        qkv.save(GPT(config), f"{folder}/model", tokenizer=random_tokenizer(VOCABULARY))
        command = [sys.executable, "-m", "benchmarks.serving.http_cost", "--serve"]
        if options.profile:
            command[1:1] = ["-m", "cProfile", "-o", options.profile]

        command += [f"{folder}/model", "--device", "cpu", "--rows", str(options.clients)]
        server = running.enter_context(started([*command, *options.flags.split()], threads=1))
        for name, stream in {"whole": False, "streamed": True}.items():
            measured = []
            for turn in range(options.turns + 1):
                result = one_turn(server, options, stream=stream)
                if turn:
                    measured.append(result)

            report(name, measured, options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve_instantly(sys.argv[2:])
    else:
        main(tyro.cli(Options, description=__doc__))
