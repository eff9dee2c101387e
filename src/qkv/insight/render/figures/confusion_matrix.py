"""Which class was taken for which: a table for the terminal, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.text import Text

from qkv.insight.render.figures.figure_style import INK, check_ending, head, save
from qkv.tables import Table
from qkv.training.finetune.task_metrics import of_classes

Counts = Int[np.ndarray, "C C"]
FEW = 6  # classes whose whole grid has room in a table
NUMBERED = 20  # classes whose cells have room for their numbers
MOST = 60  # classes that a picture or a table shows; of more, the most frequent ones
TAKEN = 3  # confusions named for each class
LONGEST = 24  # characters of a class's name


class ClassScore(NamedTuple):
    """How one class was recognised; NaN where there is nothing to divide by."""

    rows: int
    """Rows that are of it."""
    said: int
    """Rows that were said to be of it."""
    precision: float
    """Of those said to be of it, the part that is."""
    recall: float
    """Of those that are of it, the part that was said to be."""
    f1: float
    """The harmonic mean of both."""


def class_scores(counts: Counts) -> list[ClassScore]:
    true, said, right = counts.sum(1), counts.sum(0), counts.diagonal()  # (C,) each
    made = []
    for t, s, r in zip(true.tolist(), said.tolist(), right.tolist(), strict=True):
        made.append(ClassScore(t, s, part(r, s), part(r, t), part(2 * r, t + s)))

    return made


def part(some: int, all: int) -> float:
    return some / all if all else float("nan")


def macro_f1(counts: Counts) -> float:
    """The mean F1 of all classes that there are or that were said, each counting alike."""
    return of_classes(counts.astype(np.float64))["macro_f1"]


# The table


def confusion_table(counts: Any, labels: Sequence[str]) -> Table:
    """A row for each class: how well it was recognised and, of few classes, all counts; of many,
    what it was most often taken for. Rows of `counts` are what is true, columns what was said."""
    counts, names = checked(counts, labels)
    rows, right = int(counts.sum()), int(counts.trace())
    scores = class_scores(counts)
    shown = frequent(counts)
    made = Table(header_style="bold", title_justify="left", caption_justify="left")
    made.caption = f"{right:,} of {rows:,} right: accuracy {right / rows:.1%}, mean F1 {100 * macro_f1(counts):.1f}"
    if len(shown) < len(labels):
        made.caption += f"; the {len(shown)} most frequent of {len(labels):,} classes"

    made.add_column("class")

    for name in ("count", "precision", "recall", "F1"):
        made.add_column(name, justify="right")

    grid = len(labels) <= FEW

    for place in range(len(labels)) if grid else ():
        made.add_column(Text(f"said {names[place]}"), justify="right", overflow="fold")

    if not grid:
        made.add_column("most often taken for")

    for place in shown:
        score = scores[place]
        cells = [
            f"{score.rows:,}",
            *(percent(each) for each in (score.precision, score.recall, score.f1)),
        ]
        row = counts[place]  # (C,)
        if grid:
            more = [
                Text(f"{n:,}", style="bold" if at == place else "")
                for at, n in enumerate(row.tolist())
            ]
        else:
            more = [
                Text(", ".join(f"{names[at]} {row[at]:,}" for at in taken_for(row, place)) or "-")
            ]

        made.add_row(Text(names[place]), *cells, *more)

    return made


def taken_for(row: Int[np.ndarray, "C"], place: int) -> list[int]:
    """The other classes that a class was most often said to be, the most frequent first."""
    order = np.argsort(-row, kind="stable").tolist()
    return [at for at in order if at != place and row[at]][:TAKEN]


def percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}"


def frequent(counts: Counts) -> list[int]:
    """The classes that there is room for, in their own order."""
    often = np.argsort(-(counts.sum(0) + counts.sum(1)), kind="stable")[:MOST]
    return sorted(often.tolist())


# The picture


def draw_confusion(
    counts: Any, labels: Sequence[str], path: Path, title: str = "Confusion"
) -> Path:
    """A .png, .svg or .pdf file: a row for each true class, a column for each that was said."""
    check_ending(path, "path")
    counts, names = checked(counts, labels)
    return save(lambda: draw(counts, names, title), path)


def draw(counts: Counts, names: Sequence[str], title: str) -> Figure:
    rows, right = int(counts.sum()), int(counts.trace())
    below = (
        f"{right:,} of {rows:,} right ({right / rows:.1%}), mean F1 {100 * macro_f1(counts):.1f}"
    )
    counts, names = gathered(counts, names)
    classes = len(names)
    cell = 1.1 if classes <= FEW else 0.46 if classes <= NUMBERED else 0.19  # inches
    names_room = 0.9 + 0.085 * max(map(len, names))
    side = cell * classes
    size = (max(5.4, side + names_room + 1.3), max(3.6, side + names_room + 0.9))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = figure.add_subplot()
    shares = row_shares(counts)
    # The root of a share: confusions of a few in a hundred are what one looks for.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="equal")
    if classes <= NUMBERED:
        numbers(axes, counts, shares, 13 if classes <= FEW else 8)

    font = 11 if classes <= FEW else 9 if classes <= NUMBERED else 7
    flat = classes <= FEW and max(map(len, names)) <= 12
    axes.set_xticks(range(classes), names, rotation=0 if flat else 90, fontsize=font, color=INK)
    axes.set_yticks(range(classes), names, fontsize=font, color=INK)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("said")
    axes.set_ylabel("true")
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = figure.colorbar(image, ax=axes, ticks=ticks, shrink=0.8, aspect=30, pad=0.03)
    bar.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks])
    bar.ax.tick_params(labelsize=9, length=0)
    bar.set_label("of the row", fontsize=9)
    bar.outline.set_visible(False)
    head(axes, shortened(title, 60), below)

    return figure


def numbers(axes: Axes, counts: Counts, shares: Float[np.ndarray, "C C"], font: int) -> None:
    """In each cell how many; where there are many cells, empty ones say it by their colour."""
    for (true, said), count in np.ndenumerate(counts):
        if count or len(counts) <= FEW:
            text = f"{count:,}" if count < 10_000 or len(counts) <= FEW else f"{count / 1000:.0f}k"
            colour = "white" if shares[true, said] > 0.3 else INK
            axes.text(said, true, text, ha="center", va="center", fontsize=font, color=colour)


def row_shares(counts: Counts) -> Float[np.ndarray, "C C"]:
    """The part of each true class that was said to be each class; nothing in the row of a class
    that never came.
    """
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def gathered(counts: Counts, names: Sequence[str]) -> tuple[Int[np.ndarray, "c c"], list[str]]:
    """The most frequent classes, and all others as one, the last."""
    if len(names) <= MOST:
        return counts, list(names)

    shown = frequent(counts)
    group = np.full(len(names), MOST)  # (C,): the row and column that a class goes to
    group[shown] = range(MOST)
    made = np.zeros((MOST + 1, MOST + 1), dtype=np.int64)
    np.add.at(made, (group[:, None], group[None, :]), counts)

    return made, [*(names[place] for place in shown), f"{len(names) - MOST:,} others"]


# What was given


def checked(counts: Any, labels: Sequence[str]) -> tuple[Counts, list[str]]:
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != (len(labels), len(labels)) or not len(labels):
        expected = f"({len(labels)}, {len(labels)})"
        raise ValueError(
            f"counts: expected a row and a column for each label, {expected}, not {counts.shape}"
        )

    if counts.min() < 0 or not counts.sum():
        raise ValueError("counts: expected how often each was said, 0 or more and not all 0")

    return counts, [shortened(label) for label in labels]


def shortened(name: str, longest: int = LONGEST) -> str:
    """In one line, with no sign that would command a terminal; of a long name the beginning and the
    end.
    """
    name = "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(name.split()))
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - 1 - half]}…{name[-half:]}"
