"""Confusion matrix of a classifier: a table for the terminal, and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from rich.text import Text

from qkv.insight.render.figures.figure_style import (
    INK,
    canvas,
    colour_bar,
    head,
    hide_frame,
    save,
    write_cells,
)
from qkv.tables import Table
from qkv.training.finetune.task_metrics import class_metrics

Counts = Int[np.ndarray, "C C"]
"""Rows are true classes, columns predicted ones."""
FEW = 6  # classes whose whole matrix fits into a table
NUMBERED = 20  # classes whose cells have room for their numbers
MOST = 60  # most classes in a figure or a table; beyond, the most frequent ones
TAKEN = 3  # confusions named for each class
TICKS = (0, 0.01, 0.05, 0.2, 0.5, 1)  # of the colour bar
LONGEST = 24  # characters of a class name


class ClassScore(NamedTuple):
    """Precision, recall and F1 of one class; NaN where the denominator is 0."""

    rows: int
    """Rows of this class."""
    predicted: int
    """Rows predicted as this class."""
    precision: float
    recall: float
    f1: float


class MatrixLayout(NamedTuple):
    """Sizes of a figure, which depend on the number of classes."""

    cell: float
    """Inches."""
    label_size: float
    number_size: float


def class_scores(counts: Counts) -> list[ClassScore]:
    """The scores of each class."""
    rows = counts.sum(1)
    predicted = counts.sum(0)
    correct = counts.diagonal()
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        ratios = (correct / predicted, correct / rows, 2 * correct / (rows + predicted))

    return list(map(ClassScore, *(values.tolist() for values in (rows, predicted, *ratios))))


def summary(counts: Counts, form: str) -> str:
    """The caption: `form` has the fields right, rows, accuracy and f1."""
    rows = int(counts.sum())
    right = int(counts.trace())
    f1 = 100 * class_metrics(counts.astype(np.float64))["macro_f1"]
    return form.format(right=right, rows=rows, accuracy=right / rows, f1=f1)


# The table


def confusion_table(counts: Any, labels: Sequence[str]) -> Table:
    """A row for each class: its scores, and its row of the matrix or its most frequent confusions.

    Rows of `counts` are true classes, columns predicted ones.
    """
    counts, names = checked(counts, labels)
    shown = frequent(counts)
    table = Table(header_style="bold", title_justify="left", caption_justify="left")
    table.caption = summary(
        counts, "{right:,} of {rows:,} right: accuracy {accuracy:.1%}, macro F1 {f1:.1f}"
    )
    if len(shown) < len(labels):
        table.caption += f"; the {len(shown)} most frequent of {len(labels):,} classes"

    # The columns
    table.add_column("class")
    for name in ("count", "precision", "recall", "F1"):
        table.add_column(name, justify="right")

    whole_matrix = len(labels) <= FEW
    if whole_matrix:
        for name in names:
            table.add_column(Text(f"predicted {name}"), justify="right", overflow="fold")
    else:
        table.add_column("most often predicted as")

    # The rows
    scores = class_scores(counts)
    for index in shown:
        row = counts[index]
        if whole_matrix:
            cells = matrix_cells(row, index)
        else:
            cells = [Text(confusions(row, index, names) or "-")]

        rows, _, *ratios = scores[index]
        table.add_row(Text(names[index]), f"{rows:,}", *map(percent, ratios), *cells)

    return table


def matrix_cells(row: Int[np.ndarray, "C"], index: int) -> list[Text]:
    """A row of the matrix; the number of correct predictions is bold."""
    cells = [Text(f"{count:,}") for count in row.tolist()]
    cells[index].style = "bold"
    return cells


def confusions(row: Int[np.ndarray, "C"], index: int, names: Sequence[str]) -> str:
    """The other classes that a class was most often predicted as, the most frequent first."""
    order = np.argsort(-row, kind="stable").tolist()
    others = [other for other in order if other != index and row[other]]
    return ", ".join(f"{names[other]} {row[other]:,}" for other in others[:TAKEN])


def percent(value: float) -> str:
    if np.isnan(value):
        return "-"

    return f"{100 * value:.1f}"


def frequent(counts: Counts) -> list[int]:
    """The indices of the most frequent classes, in the order of the labels."""
    often = np.argsort(-(counts.sum(0) + counts.sum(1)), kind="stable")[:MOST]
    return sorted(often.tolist())


# The figure


def draw_confusion(
    counts: Any, labels: Sequence[str], path: Path, title: str = "Confusion"
) -> Path:
    """Draw the matrix to a .png, .svg or .pdf file: true classes down, predicted ones across."""
    counts, names = checked(counts, labels)
    return save(lambda: draw(counts, names, title), path, "path")


def draw(counts: Counts, names: Sequence[str], title: str) -> Figure:
    below = summary(counts, "{right:,} of {rows:,} right ({accuracy:.1%}), macro F1 {f1:.1f}")
    counts, names = gathered(counts, names)
    layout = layout_of(len(names))
    figure = canvas(*figure_size(layout, names))
    axes = figure.add_subplot()
    shares = row_shares(counts)

    # Colours follow the square root of a share, so that confusions of a few percent are visible.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="equal")
    if len(names) <= NUMBERED:
        texts = [[count_text(count, len(names) <= FEW) for count in row] for row in counts.tolist()]
        write_cells(axes, texts, shares > 0.3, layout.number_size)

    label_axes(axes, names, layout.label_size)
    colour_bar(axes, image, "share of the row", 9, shrink=0.8, ticks=TICKS, form="{:.0%}")
    head(axes, shortened(title, 60), below)

    return figure


def layout_of(classes: int) -> MatrixLayout:
    if classes <= FEW:
        return MatrixLayout(cell=1.1, label_size=11, number_size=13)
    if classes <= NUMBERED:
        return MatrixLayout(cell=0.46, label_size=9, number_size=8)

    return MatrixLayout(cell=0.19, label_size=7, number_size=0)


def figure_size(layout: MatrixLayout, names: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches, with room for the names."""
    side = layout.cell * len(names) + 0.9 + 0.085 * max(map(len, names))
    return max(5.4, side + 1.3), max(3.6, side + 0.9)


def count_text(count: int, roomy: bool) -> str:
    """A count; where there is little room, zeros are left out and large numbers shortened."""
    if roomy or 0 < count < 10_000:
        return f"{count:,}"
    if not count:
        return ""

    return f"{count / 1000:.0f}k"


def label_axes(axes: Axes, names: Sequence[str], font_size: float) -> None:
    """Class names along both axes, upright below where they are long."""
    short = len(names) <= FEW and max(map(len, names)) <= 12
    rotation = 0 if short else 90
    axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=font_size, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=font_size, color=INK)
    hide_frame(axes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")


def row_shares(counts: Counts) -> Float[np.ndarray, "C C"]:
    """The share of each true class that was predicted as each class; 0 for a class without rows."""
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def gathered(counts: Counts, names: Sequence[str]) -> tuple[Int[np.ndarray, "c c"], list[str]]:
    """The most frequent classes, and all others summed up as the last one."""
    if len(names) <= MOST:
        return counts, list(names)

    shown = frequent(counts)
    group = np.full(len(names), MOST)  # (C,): the row and column that a class is added to
    group[shown] = range(MOST)
    summed = np.zeros((MOST + 1, MOST + 1), dtype=np.int64)
    np.add.at(summed, (group[:, None], group[None, :]), counts)
    labels = [names[index] for index in shown]

    return summed, [*labels, f"{len(names) - MOST:,} others"]


# Validation


def checked(counts: Any, labels: Sequence[str]) -> tuple[Counts, list[str]]:
    """The counts as an array and the labels shortened, or an error."""
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != (len(labels), len(labels)) or not len(labels):
        expected = f"({len(labels)}, {len(labels)})"
        raise ValueError(
            f"counts: expected a row and a column for each label, {expected}, not {counts.shape}"
        )

    if counts.min() < 0 or not counts.sum():
        raise ValueError("counts: expected numbers of rows, 0 or more and not all 0")

    return counts, list(map(shortened, labels))


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name in one line without control characters; a long one is cut in the middle."""
    name = " ".join(name.split())
    name = "".join(char if char.isprintable() else "\ufffd" for char in name)
    if len(name) <= longest:
        return name

    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"
