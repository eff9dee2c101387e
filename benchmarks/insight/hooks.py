"""What the taps cost while nobody listens: the same code with and without them, taking turns in one
run.

python -m benchmarks.insight.hooks                       on a CPU in float32: SmolLM2-135M reads and
                                                decodes, gpt-tiny learns on a GPU in bf16: GPT-2
                                                124M learns, compiled, and decodes

Without: the source of every part that has taps is read, each `self.taps(name, value)` in it
replaced by its value, and compiled again. Each turn gives a ratio of two neighbours in time; the
median of the ratios counts.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import statistics
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import tyro

import qkv
from benchmarks.harness import clock, machine
from qkv.generation import generate
from qkv.models import GPT, build, preset
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Block, Stack
from qkv.nn.embedding import Embedding
from qkv.nn.feed_forward import FeedForward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TAPPED: list[tuple[type[Any], str]] = [
    (MultiHeadAttention, "forward"),
    (Block, "forward"),
    (Stack, "forward"),
    (Embedding, "forward"),
    (FeedForward, "forward"),
    (GPT, "logits"),
]


@dataclass
class Options:
    turns: int = 31


class Untapped(ast.NodeTransformer):
    """self.taps(name, value) becomes value; self.taps.heard(name) becomes None."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called == "self.taps":
            return node.args[1]
        return ast.Constant(None) if called == "self.taps.heard" else node


def untapped(function: Callable[..., Any]) -> Callable[..., Any]:
    tree = ast.fix_missing_locations(
        Untapped().visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
    )
    scope: dict[str, Any] = {}
    code = compile(
        tree, function.__code__.co_filename, "exec", flags=__future__.annotations.compiler_flag
    )
    exec(code, function.__globals__, scope)
    made = scope[function.__name__]
    assert "taps" not in made.__code__.co_names, function
    return made


@contextmanager
def without_taps() -> Iterator[None]:
    before = [(part, name, getattr(part, name)) for part, name in TAPPED]
    for part, name, function in before:
        setattr(part, name, untapped(function))
    try:
        yield
    finally:
        for part, name, function in before:
            setattr(part, name, function)


def compare(name: str, tapped: Callable[[], Any], bare: Callable[[], Any], turns: int) -> None:
    for work in (tapped, bare, tapped, bare):
        work()
    ratios, times = [], []
    for turn in range(turns):
        works = {"tapped": tapped, "bare": bare}
        took = {
            each: clock(works[each], DEVICE) for each in (works if turn % 2 else reversed(works))
        }
        ratios.append(took["tapped"] / took["bare"])
        times.append(took["tapped"])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:32} {statistics.median(times) * 1e3:8.1f} ms   with / without taps x {middle:.4f}"
        f"   quartiles {low:.4f} {high:.4f}   {turns} turns",
        flush=True,
    )


def on_cpu(turns: int) -> None:
    model: Any = qkv.load("smollm2").model
    small: Any = build(preset("gpt-tiny"))
    optimizer = torch.optim.AdamW(small.parameters())
    ids = torch.randint(1000, 40000, (1, 128))
    words = torch.randint(small.config.vocabulary, (8, 64))

    def read() -> None:
        with torch.no_grad():
            model(ids)

    def decode() -> None:
        state = model.start()
        with torch.no_grad():
            model.decode(ids[:, :8], state)
            for place in range(8, 24):
                model.decode(ids[:, place : place + 1], state)

    def learn() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            logits = small(words[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
            optimizer.step()

    works = {
        "SmolLM2 reads 128 tokens": read,
        "SmolLM2 decodes 16 tokens": decode,
        "gpt-tiny learns, 4 steps": learn,
    }
    with without_taps():
        bare = [(part, name, getattr(part, name)) for part, name in TAPPED]
    for name, work in works.items():

        def swapped(work: Callable[[], None] = work) -> None:
            before = [getattr(part, name) for part, name, _ in bare]
            for part, name, function in bare:
                setattr(part, name, function)
            work()
            for (part, name, _), function in zip(bare, before, strict=True):
                setattr(part, name, function)

        compare(name, work, swapped, turns)


def on_gpu(turns: int) -> None:
    def made() -> tuple[Callable[[], None], Callable[[], None]]:
        torch.compiler.reset()
        model: Any = build(preset("gpt2")).cuda()
        half: Any = build(preset("gpt2")).cuda().bfloat16().eval()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(50257, (16, 1025), device="cuda")

        @torch.compile
        def loss(ids: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

        def learn() -> None:
            for _ in range(5):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    value = loss(ids)
                value.backward()
                optimizer.step()

        def decode() -> None:
            generate(half, ids[:1, :16], length=200, temperature=0.0)

        learn()
        decode()
        return learn, decode

    tapped = made()
    with without_taps():
        bare = made()
    for name, one, other in zip(
        ("GPT-2 learns, 5 steps", "GPT-2 decodes 200 tokens"), tapped, bare, strict=True
    ):
        compare(name, one, other, turns)


def main(options: Options) -> None:
    print(f"HookPoints that nobody listens to; {machine()}")
    (on_gpu if DEVICE == "cuda" else on_cpu)(options.turns)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
