"""The cost of hook points without hooks: the same code with and without them, in turns.

    python -m benchmarks.insight.hooks

On a CPU in float32: SmolLM2-135M reads and decodes, gpt-tiny trains. On a GPU in bf16: GPT-2 124M
trains (compiled) and decodes.

Without hook points: in the source of every module, each `self.hooks(name, value)` is replaced by
its value, and the source is compiled again. Each turn gives the ratio of two neighbouring runs; the
median of the ratios is reported.
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
HOOKED: list[tuple[type[Any], str]] = [
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


class WithoutHooks(ast.NodeTransformer):
    """self.hooks(name, value) becomes value; self.hooks.callback(name) becomes None."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called == "self.hooks":
            return node.args[1]
        if called == "self.hooks.callback":
            return ast.Constant(None)
        return node


def without_hook_points(function: Callable[..., Any]) -> Callable[..., Any]:
    tree = ast.fix_missing_locations(
        WithoutHooks().visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
    )
    scope: dict[str, Any] = {}
    code = compile(
        tree, function.__code__.co_filename, "exec", flags=__future__.annotations.compiler_flag
    )
    exec(code, function.__globals__, scope)
    compiled = scope[function.__name__]
    assert "hooks" not in compiled.__code__.co_names, function
    return compiled


@contextmanager
def hook_points_removed() -> Iterator[None]:
    before = [(part, name, getattr(part, name)) for part, name in HOOKED]
    for part, name, function in before:
        setattr(part, name, without_hook_points(function))
    try:
        yield
    finally:
        for part, name, function in before:
            setattr(part, name, function)


def compare(name: str, hooked: Callable[[], Any], bare: Callable[[], Any], turns: int) -> None:
    """Run both in turns, and print the median time and the ratio."""
    for work in (hooked, bare, hooked, bare):
        work()
    ratios = []
    times = []
    works = {"hooked": hooked, "bare": bare}
    for turn in range(turns):
        order = ("hooked", "bare") if turn % 2 else ("bare", "hooked")
        seconds = {key: clock(works[key], DEVICE) for key in order}
        ratios.append(seconds["hooked"] / seconds["bare"])
        times.append(seconds["hooked"])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:32} {statistics.median(times) * 1e3:8.1f} ms   "
        f"with / without hook points x {middle:.4f}   "
        f"quartiles {low:.4f} {high:.4f}   {turns} turns",
        flush=True,
    )


def on_cpu(turns: int) -> None:
    model: Any = qkv.load("smollm2").model
    small: Any = build(preset("gpt-tiny"))
    optimizer = torch.optim.AdamW(small.parameters())
    ids = torch.randint(1000, 40000, (1, 128))
    batch = torch.randint(small.config.vocabulary, (8, 64))

    def read() -> None:
        with torch.no_grad():
            model(ids)

    def decode() -> None:
        state = model.start()
        with torch.no_grad():
            model.decode(ids[:, :8], state)
            for position in range(8, 24):
                model.decode(ids[:, position : position + 1], state)

    def train() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            logits = small(batch[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()

    works = {
        "SmolLM2 reads 128 tokens": read,
        "SmolLM2 decodes 16 tokens": decode,
        "gpt-tiny trains, 4 steps": train,
    }
    with hook_points_removed():
        bare = [(part, name, getattr(part, name)) for part, name in HOOKED]
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
    def build_works() -> tuple[Callable[[], None], Callable[[], None]]:
        torch.compiler.reset()
        model: Any = build(preset("gpt2")).cuda()
        half: Any = build(preset("gpt2")).cuda().bfloat16().eval()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(50257, (16, 1025), device="cuda")

        @torch.compile
        def loss(ids: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

        def train() -> None:
            for _ in range(5):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    value = loss(ids)
                value.backward()
                optimizer.step()

        def decode() -> None:
            generate(half, ids[:1, :16], length=200, temperature=0.0)

        train()
        decode()
        return train, decode

    hooked = build_works()
    with hook_points_removed():
        bare = build_works()
    for name, one, other in zip(
        ("GPT-2 trains, 5 steps", "GPT-2 decodes 200 tokens"), hooked, bare, strict=True
    ):
        compare(name, one, other, turns)


def main(options: Options) -> None:
    print(f"Hook points without hooks; {machine()}")
    if DEVICE == "cuda":
        on_gpu(options.turns)
    else:
        on_cpu(options.turns)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
