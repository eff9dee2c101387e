"""The last page of the course: a student's own GPT beside the library's, at the same seed.

Both are trained on the same batches from the same weights. Their losses are equal up to rounding
as long as both compute the same, and the page shows it step by step.
"""

from __future__ import annotations

import html
import io
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich.console import Console

from qkv import artifact, storage
from qkv.insight.render.figures.figure_style import COLOURS, PALE, canvas, plain_ticks
from qkv.lab.report.lab_page import document, html_table, items, section
from qkv.learn.run_views import attention_views, picture, sample_table, samples, short_look
from qkv.models.configs import GPTConfig, OwnGPTConfig
from qkv.models.registry import build
from qkv.models.variants.own_gpt import OwnGPT, library_config, unlike_the_library
from qkv.plugins import allow_file
from qkv.training.logging.metrics import read_metrics
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.train import train

PAGE = "finish.html"
RUNS = Path("runs", "finish")
EQUAL = 1e-5
"""The largest difference of losses that counts as equal."""
SIZES: dict[str, Any] = {"vocabulary": 400, "context": 64, "width": 64, "depth": 2, "heads": 4}
DATA = DataConfig(data=("english",), tokenizer="words")
OPTIMIZER = OptimizerConfig(learning_rate=2e-3)
PROMPTS = ("the old man", "they lit a fire", "he took the")
TEXT = "the old man lit a candle in the dark and they lit a fire in the stove"
ROWS = 12
"""Steps in the table."""


class LossPair(NamedTuple):
    """The losses of both models after a step."""

    step: int
    hers: float
    ours: float

    @property
    def difference(self) -> float:
        return abs(self.hers - self.ours)


def finish(folder: Path, steps: int = 200, out: Path | None = None) -> Path:
    """Train a student's own GPT and the library's, and write a page that compares them.

    Args:
        folder: The folder of the course, with mine.py.
        steps: Steps of training.
        out: The page; by default finish.html in the folder. A page of her attention is beside it,
            and the two runs are in runs/finish of the folder.

    Returns:
        The path of the page.

    Raises:
        ValueError: If there is no mine.py, or her GPT cannot be trained.
    """
    page = Path(out or folder / PAGE)
    if page.suffix != ".html":
        raise ValueError(f"out: expected the name of an .html file, not {page}")

    file = folder / "mine.py"
    if not file.is_file():
        raise ValueError(f"folder: there is no {file}; qkv learn start FOLDER writes it")

    config = OwnGPTConfig(**SIZES, model=allow_file(f"{file}:GPT", "model"))
    build(config)  # an error here leaves the earlier runs as they are
    runs = folder / RUNS
    if runs.exists():
        shutil.rmtree(runs)  # of an earlier page

    for name, one in (("mine", config), ("library", library_config(config))):
        trained(one, runs / name, steps)

    pairs = loss_pairs(runs / "mine", runs / "library")
    look_page = page.with_name(f"{page.stem}-attention.html")
    storage.write_text(page, comparison_page(runs, pairs, look_page))
    return page


def trained(config: GPTConfig, out: Path, steps: int) -> None:
    """Train a model quietly, without a compiler, so that both take the same path."""
    run = RunConfig(
        out=out,
        steps=steps,
        batch_tokens=1024,
        compile=False,
        sample_every=0,
        validate_every=max(1, steps // 2),
    )
    train(config, DATA, OPTIMIZER, run, console=Console(file=io.StringIO()))


def loss_pairs(hers: Path, ours: Path) -> list[LossPair]:
    """The losses of both runs, step by step."""
    losses = []
    for run in (hers, ours):
        rows = [row for row in read_metrics(run) if "loss" in row and "event" not in row]
        losses.append({row["step"]: row["loss"] for row in rows})

    both = sorted(losses[0].keys() & losses[1].keys())
    return [LossPair(step, losses[0][step], losses[1][step]) for step in both]


# The page


def comparison_page(runs: Path, pairs: list[LossPair], look_page: Path) -> str:
    """The page as text; the page of her attention is written to its own file."""
    hers = artifact.load(runs / "mine")
    ours = artifact.load(runs / "library")
    assert isinstance(hers.model, OwnGPT)
    seen = short_look(hers, TEXT, "my GPT")
    seen.save(look_page)

    columns = {"my GPT": samples(hers, PROMPTS), "the library's": samples(ours, PROMPTS)}
    same = "The texts are equal." if len(set(map(tuple, columns.values()))) == 1 else ""
    table = f'<div class="scroller">{html_table(*table_of(pairs))}</div>'
    link = f'<p><a href="{html.escape(look_page.name)}">Every layer and head, to explore</a></p>'
    sections = [
        verdict(pairs, unlike_the_library(hers.model)),
        section("Losses", picture(partial(draw_pairs, pairs), "losses of both by step")),
        section("Step by step", table, "table"),
        section("Samples", sample_table(PROMPTS, columns) + f'<p class="note">{same}</p>'),
        section("What my heads attend to", attention_views(seen) + link),
        section("How it was trained", items(facts(pairs))),
    ]
    place = "Build your own GPT: the last page"
    return document("My own GPT", place, "\n".join(sections), {"marks": [], "colours": {}})


def verdict(pairs: list[LossPair], other_parameters: list[str]) -> str:
    """The title of the page, and whether the losses are equal."""
    worst = largest(pairs)
    equal = worst.difference <= EQUAL
    word = '<span class="word holds">equal</span>'
    says = "My GPT learns as the library's does, step by step."
    if not equal:
        word = '<span class="word not">not equal</span>'
        says = "My GPT learns, but not as the library's does."

    notes = [f"Largest difference: {worst.difference:.1e}, at step {worst.step}; equal: 1e-5."]
    if other_parameters:
        notes.append(
            f"Parameters of other names or shapes than the library's: {', '.join(other_parameters)}"
        )

    note = html.escape(" ".join(notes))
    return (
        f'<header><h1>{says}</h1><p class="verdict">{word}<span class="note">{note}</span></p>'
        "</header>"
    )


def largest(pairs: list[LossPair]) -> LossPair:
    """The step with the largest difference; a loss that is not a number counts as larger."""

    def size(pair: LossPair) -> float:
        return math.inf if math.isnan(pair.difference) else pair.difference

    return max(pairs, key=size)


def table_of(pairs: list[LossPair]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table with a few steps, the first and the last among them."""
    count = min(ROWS, len(pairs))
    chosen = sorted({round(place) for place in np.linspace(0, len(pairs) - 1, count)})
    rows = []
    for index in chosen:
        pair = pairs[index]
        rows.append(
            [str(pair.step), f"{pair.hers:.6f}", f"{pair.ours:.6f}", f"{pair.difference:.1e}"]
        )

    return ["step", "my GPT", "the library's", "difference"], rows


def facts(pairs: list[LossPair]) -> list[str]:
    """How both models were trained."""
    sizes = ", ".join(f"{name} {SIZES[name]}" for name in ("context", "width", "depth", "heads"))
    shared = "The same seed, weights and batches"
    if not largest(pairs).difference <= EQUAL:  # a NaN is not equal either
        shared = "The same batches; the weights of the first step may differ"

    return [
        f"{shared}: {len(pairs)} steps of 1,024 tokens of the embedded English sentences.",
        f"Sizes: {sizes}; learned positions, norm before each sublayer, GELU, tied output layer.",
        "The same optimizer for both: AdamW with warm-up, cosine schedule and clipping.",
    ]


def draw_pairs(pairs: list[LossPair]) -> Figure:
    """Both losses, one line on top of the other, and below them their difference."""
    steps = [pair.step for pair in pairs]
    figure = canvas(10.0, 6.4)
    upper, lower = figure.subplots(2, 1, height_ratios=[2, 1], sharex=True)

    upper.plot(
        steps,
        [pair.hers for pair in pairs],
        color=COLOURS[0],
        linewidth=6,
        alpha=0.45,
        label="my GPT",
    )
    upper.plot(
        steps,
        [pair.ours for pair in pairs],
        color=COLOURS[1],
        linewidth=1.6,
        linestyle=(0, (4, 3)),
        label="the library's",
    )
    upper.set_ylabel("loss")
    upper.legend()
    plain_ticks(upper.yaxis, 6)

    # A difference of 0 has no place on a logarithmic axis.
    differences = [max(pair.difference, 1e-9) for pair in pairs]
    lower.plot(steps, differences, color=COLOURS[2], linewidth=1.6)
    lower.axhline(EQUAL, color=PALE, linewidth=1, linestyle="--")
    lower.set_yscale("log")
    lower.set_ylim(5e-10, max(1e-4, 2 * max(differences)))
    lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    lower.yaxis.set_minor_formatter(NullFormatter())
    lower.set_ylabel("difference\n(bottom: 0)")
    lower.set_xlabel("step")

    return figure
