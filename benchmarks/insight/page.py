"""A page of attention in a real browser: how long until it draws, and how smoothly it moves.

python -m benchmarks.insight.page                                   1,024 tokens, 12 layers of 12
heads, all weights python -m benchmarks.insight.page --tokens 4096 --kept 1            4,096 tokens,
the weights of one layer

The weights are made, half of the heads sharp and half diffuse, under a causal mask: diffuse ones
are what deflates least and draws slowest. Times count from the start of the navigation. A frame is
late where the browser draws nothing for longer than two of its sixtieths of a second; the map is
moved anew in every frame.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from benchmarks.harness import machine
from qkv.insight.inspect.capture import Attention, distance, entropy, glance
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look
from qkv.insight.render.page import write_page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
WATCH = """(() => {
  const times = (window.times = {});
  const look = () => {
    const drawn = document.querySelector("canvas.cells, .cell canvas");
    if (drawn && drawn.width && !times.first) times.first = performance.now();
    if (document.querySelector("#qkv[data-shown]")) times.whole ??= performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
MOVE = """([kind, moves, by]) => new Promise((done) => {
  const canvas = document.querySelector("canvas.cells");
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const took = [];
  let before = null;
  const next = (now) => {
    if (before !== null) took.push(now - before);
    before = now;
    if (took.length === moves) return done(took);
    const [across, down] = [150 * Math.sin(took.length / 9), 150 * Math.sin(took.length / 7)];
    const at = kind === "wheel" ? { clientX: x, clientY: y } : { clientX: x - across, clientY: y - down, pointerId: 1 };
    const made = kind === "wheel" ? new WheelEvent("wheel", { ...at, deltaY: by, cancelable: true })
      : new PointerEvent("pointermove", { ...at, pointerType: "mouse" });
    canvas.dispatchEvent(made);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""


@dataclass
class Options:
    tokens: int = 1024
    layers: int = 12
    heads: int = 12
    kept: int | None = None
    """So many layers have all their weights in the page; the others are in the overview."""
    rounds: int = 3
    moves: int = 240
    """Frames in which the map is dragged or made larger."""


def head(tokens: int, sharp: bool) -> Tensor:
    """(T, T)"""
    apart = torch.arange(tokens).unsqueeze(1) - torch.arange(tokens)  # (T, T)
    scores = torch.randn(tokens, tokens) * (3 if sharp else 0.7)
    scores += torch.randn(tokens) * (2 if sharp else 0.3)
    scores -= apart.abs() * (0.05 if sharp else 0.0005)
    scores[:, 0] += math.log(tokens) * (1 if sharp else 0.3)
    return scores.masked_fill(apart < 0, -math.inf).softmax(-1)


def made(options: Options) -> Look:
    torch.manual_seed(0)
    words = [WholeWord(f"word{place}", [place]) for place in range(options.tokens)]
    side = Side(tuple(range(options.tokens)), tuple(word.text for word in words), tuple(words))
    kept: dict[int, Tensor] = {}
    sums = []
    for layer in range(options.layers):
        weights = torch.stack(
            [head(options.tokens, (layer + each) % 2 == 0) for each in range(options.heads)]
        )
        sums.append((glance(weights), entropy(weights), distance(weights, "self")))
        if options.kept is None or layer < options.kept:
            kept[layer] = weights  # (H, T, T)
    overview, spread, apart = (torch.stack(each) for each in zip(*sums, strict=True))
    depth, heads = options.layers, options.heads
    attention = Attention("self", side, side, kept, depth, heads, True, overview, spread, apart)
    return Look("made", Reading(side), [attention], None, None, None)


def opened(browser: Any, out: Path, hash: str) -> tuple[Any, dict[str, float]]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    page.goto(out.as_uri() + hash, wait_until="commit")
    page.wait_for_function("() => window.times && window.times.whole")
    return page, page.evaluate("window.times")


def frames(page: Any, kind: str, moves: int, by: float = 0) -> str:
    """Something moves in every frame."""
    took = sorted(page.evaluate(MOVE, [kind, moves, by]))
    late = sum(each > 34 for each in took)
    middle, most = statistics.median(took), took[int(0.95 * len(took))]
    return (
        f"p50 {middle:5.1f}  p95 {most:5.1f}  max {took[-1]:5.1f} ms   {late} of {len(took)} late"
    )


def moving(page: Any, moves: int) -> dict[str, str]:
    box = page.locator("canvas.cells").bounding_box()

    def drag() -> str:
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        figures = frames(page, "drag", moves)
        page.mouse.up()
        return figures

    return {
        "zooming in a little": frames(page, "wheel", moves, -400 / moves),
        "panning from afar": drag(),
        "zooming in": frames(page, "wheel", moves, -1600 / moves),
        "panning from near": drag(),
        "zooming out": frames(page, "wheel", moves, 4000 / moves),
    }


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    look = made(options)
    cells = sum(weights.numel() for weights in look.attention[0].layers.values())
    print(f"{options.tokens} tokens, {options.layers} layers of {options.heads} heads; {machine()}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder) / "page.html"
        begin = time.perf_counter()
        write_page(look, out)
        took = time.perf_counter() - begin
        size = out.stat().st_size / 1e6
        print(f"  written in {took:.1f} s: {cells / 1e6:.0f} million weights in {size:.1f} MB")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        last = max(look.attention[0].layers)
        for name, hash in (
            ("all heads", "#view=heads"),
            ("the first head", "#view=head&layer=0&head=0"),
            ("the last head", f"#view=head&layer={last}&head={options.heads - 1}"),
        ):
            times = []
            for _ in range(options.rounds):
                page, each = opened(browser, out, hash)
                times.append(each)
                page.close()
            first, whole = (
                statistics.median(each[when] for each in times) for when in ("first", "whole")
            )
            rest = "" if "heads" in name else f", every weight of it after {whole / 1e3:.2f} s"
            print(f"  {name:18} drawn after {first / 1e3:.2f} s{rest}")
        page, _ = opened(browser, out, "#view=head&layer=0&head=0")
        for what, figures in moving(page, options.moves).items():
            print(f"  {what:22} {figures}", flush=True)
        browser.close()


if __name__ == "__main__":
    main(tyro.cli(Options))
