"""A page of attention in a real browser: how long until it draws, and how smoothly it moves.

    python -m benchmarks.insight.page
        1,024 tokens, 12 layers of 12 heads, all weights
    python -m benchmarks.insight.page --tokens 4096 --kept 1
        4,096 tokens, the weights of one layer

The weights are synthetic under a causal mask, half of the heads sharp and half diffuse: diffuse
ones compress least and draw slowest. Times count from the start of the navigation. A frame is late
if the browser draws nothing for longer than two sixtieths of a second; the heat map moves in every
frame.
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
from qkv.insight.inspect.capture import CapturedAttention, distance, entropy, pool_overview
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look

LATE = 34  # milliseconds between two frames
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
    const wheel = { clientX: x, clientY: y, deltaY: by, cancelable: true };
    const move = { clientX: x - across, clientY: y - down, pointerId: 1, pointerType: "mouse" };
    const event = kind === "wheel"
      ? new WheelEvent("wheel", wheel)
      : new PointerEvent("pointermove", move);
    canvas.dispatchEvent(event);
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
    """Layers with all their weights in the page; the others are in the overview only."""
    rounds: int = 3
    moves: int = 240
    """Frames in which the heat map is dragged or zoomed."""


@dataclass
class Scales:
    """How much the parts of a head's scores vary."""

    pairs: float
    keys: float
    distance: float
    first: float


SHARP = Scales(pairs=3, keys=2, distance=0.05, first=1)
DIFFUSE = Scales(pairs=0.7, keys=0.3, distance=0.0005, first=0.3)


def head(tokens: int, scales: Scales) -> Tensor:
    """Attention weights of one synthetic head: (T, T)."""
    apart = torch.arange(tokens).unsqueeze(1) - torch.arange(tokens)  # (T, T)
    scores = torch.randn(tokens, tokens) * scales.pairs
    scores += torch.randn(tokens) * scales.keys
    scores -= apart.abs() * scales.distance
    scores[:, 0] += math.log(tokens) * scales.first
    return scores.masked_fill(apart < 0, -math.inf).softmax(-1)


def synthetic_look(options: Options) -> Look:
    """A look with the weights of synthetic heads, alternately sharp and diffuse."""
    torch.manual_seed(0)
    side = synthetic_side(options.tokens)
    layers: dict[int, Tensor] = {}
    overviews = []
    entropies = []
    distances = []
    for layer in range(options.layers):
        heads = []
        for number in range(options.heads):
            heads.append(head(options.tokens, (SHARP, DIFFUSE)[(layer + number) % 2]))

        weights = torch.stack(heads)  # (H, T, T)
        overviews.append(pool_overview(weights))
        entropies.append(entropy(weights))
        distances.append(distance(weights, "self"))
        if options.kept is None or layer < options.kept:
            layers[layer] = weights

    attention = CapturedAttention(
        "self",
        side,
        side,
        layers,
        options.layers,
        options.heads,
        True,
        torch.stack(overviews),
        torch.stack(entropies),
        torch.stack(distances),
    )
    return Look("synthetic", Reading(side), [attention], None, None, None)


def synthetic_side(count: int) -> Side:
    tokens = tuple(f"word{position}" for position in range(count))
    words = tuple(WholeWord(token, [position]) for position, token in enumerate(tokens))
    return Side(tuple(range(count)), tokens, words)


def open_page(browser: Any, out: Path, hash: str) -> tuple[Any, dict[str, float]]:
    """The page when it is drawn, and the times until the first and the last drawing."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    page.goto(out.as_uri() + hash, wait_until="commit")
    page.wait_for_function("() => window.times && window.times.whole")
    return page, page.evaluate("window.times")


def frames(page: Any, kind: str, moves: int, by: float = 0) -> str:
    """The times of frames while the heat map moves in each of them."""
    times = sorted(page.evaluate(MOVE, [kind, moves, by]))
    late = sum(time > LATE for time in times)
    p95 = times[int(0.95 * len(times))]
    figures = f"p50 {statistics.median(times):5.1f}  p95 {p95:5.1f}  max {times[-1]:5.1f} ms"
    return f"{figures}   {late} of {len(times)} late"


def moving(page: Any, moves: int) -> dict[str, str]:
    """The frame times of zooming and panning, by name."""
    box = page.locator("canvas.cells").bounding_box()

    def drag() -> str:
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        figures = frames(page, "drag", moves)
        page.mouse.up()
        return figures

    return {
        "zooming in a little": frames(page, "wheel", moves, -400 / moves),
        "panning, zoomed out": drag(),
        "zooming in": frames(page, "wheel", moves, -1600 / moves),
        "panning, zoomed in": drag(),
        "zooming out": frames(page, "wheel", moves, 4000 / moves),
    }


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    look = synthetic_look(options)
    print(f"{options.tokens} tokens, {options.layers} layers of {options.heads} heads; {machine()}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder) / "page.html"
        print_writing(look, out)

        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        last = max(look.attention[0].layers)
        views = {
            "all heads": "#view=heads",
            "the first head": "#view=head&layer=0&head=0",
            "the last head": f"#view=head&layer={last}&head={options.heads - 1}",
        }
        for name, hash in views.items():
            print_opening(browser, out, name, hash, options.rounds)

        page, _ = open_page(browser, out, views["the first head"])
        for name, figures in moving(page, options.moves).items():
            print(f"  {name:22} {figures}", flush=True)

        browser.close()


def print_writing(look: Look, out: Path) -> None:
    """Write the page, and print the time and its size."""
    begin = time.perf_counter()
    look.save(out)
    seconds = time.perf_counter() - begin
    cells = sum(weights.numel() for weights in look.attention[0].layers.values())
    size = out.stat().st_size / 1e6
    print(f"  written in {seconds:.1f} s: {cells / 1e6:.0f} million weights in {size:.1f} MB")


def print_opening(browser: Any, out: Path, name: str, hash: str, rounds: int) -> None:
    """Open the page several times, and print the medians of the times."""
    first = []
    whole = []
    for _ in range(rounds):
        page, times = open_page(browser, out, hash)
        first.append(times["first"])
        whole.append(times["whole"])
        page.close()

    line = f"  {name:18} drawn after {statistics.median(first) / 1e3:.2f} s"
    if "heads" not in name:
        line += f", all of its weights after {statistics.median(whole) / 1e3:.2f} s"

    print(line)


if __name__ == "__main__":
    main(tyro.cli(Options))
