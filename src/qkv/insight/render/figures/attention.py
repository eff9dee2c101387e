"""Attention heat maps for slides: one head as a matrix, and all heads of a model as tiles."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Polygon
from rich.cells import cell_len
from torch import Tensor

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.render.figures.figure_style import (
    INK,
    PALE,
    canvas,
    colour_bar,
    hide_frame,
    write_cells,
)

# The colours do not begin with white, so that an empty cell is still visible.
BLUES = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 1, 256)), name="qkv-blues")
LEFT_OUT = "#d5d5d0"  # the colour of columns that are left out, and of hatching
NUMBERED = 20  # rows or columns whose cells have room for their numbers
FEW = 6  # up to this many rows and columns, zeros are written, too
NAMED = 64  # most labels along a side; beyond, only every second, every third ...
LETTER = 0.62  # the width of a letter as a fraction of the font size
POINTS = 72  # per inch
GAP = 1.08  # distance between two tiles, as a multiple of their size
TICKS = (0, 0.05, 0.25, 0.5, 1)


def write_title(figure: Figure, title: str) -> None:
    """Write the title above everything, from the left edge, in as many lines as it needs."""
    wide = figure.get_figwidth()
    size = 16
    letters = max(16, int((wide - 0.3) * POINTS / (size * 0.64)))
    lines = textwrap.fill(title, letters)
    figure.suptitle(lines, x=0.1 / wide, ha="left", fontsize=size, fontweight="bold")


# One head


def heat_map(
    weights: Float[Tensor, "T S"],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    below: str = "",
    *,
    row_name: str = "",
    column_name: str = "",
    forbidden: Bool[Tensor, "T S"] | None = None,
    left: Sequence[int] = (),
) -> Figure:
    """A row for each query, a column for each key; the darker a cell, the larger its weight.

    Forbidden cells are hatched, columns that are left out are grey.
    """
    wide, high = matrix_size(rows, columns)
    has_scale = max(weights.shape) > NUMBERED
    figure = canvas(max(6.4, wide + 0.35 + 1.0 * has_scale), high + 1.3)
    axes = figure.add_subplot()
    image = matrix(axes, weights, rows, columns, below, forbidden=forbidden)
    for column in left:
        axes.axvspan(column - 0.5, column + 0.5, color=LEFT_OUT, linewidth=0)

    axes.set_xlabel(column_name, fontsize=13)
    axes.set_ylabel(row_name, fontsize=13)
    if has_scale:
        colour_bar(axes, image, "weight", ticks=TICKS)

    write_title(figure, title)

    return figure


def side_of(count: int) -> float:
    """The side of a cell in inches: all cells of a long text fit onto one slide."""
    for most, side in ((4, 1.15), (8, 0.85), (14, 0.62)):
        if count <= most:
            return side

    return 10.4 / max(20, count)


def font_of(count: int) -> float:
    """The font size of labels beside this many cells."""
    for most, size in ((4, 18.0), (8, 16.0), (14, 14.0)):
        if count <= most:
            return size

    return max(7.0, 14 - 0.12 * count)


def length(names: Sequence[str], count: int) -> float:
    """The length of the longest name in inches."""
    return max(map(cell_len, names), default=1) * LETTER * font_of(count) / POINTS


def tilt(columns: Sequence[str], count: int) -> int:
    """The angle of column labels in degrees: 0 where they have room."""
    if length(columns, count) <= 0.88 * side_of(count):
        return 0
    if count <= 32:
        return 45

    return 90


def matrix_size(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    """Width and height of a matrix with its labels, in inches."""
    count = max(len(rows), len(columns))
    angle = math.radians(tilt(columns, count))
    below = length(columns, count) * math.sin(angle) + font_of(count) / POINTS
    wide = side_of(count) * len(columns) + length(rows, count)
    high = max(1.2, side_of(count) * len(rows)) + below

    return wide, high


def matrix(
    axes: Axes,
    weights: Float[Tensor, "T S"],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    *,
    shades: Float[Tensor, "T S"] | None = None,
    format_value: Callable[[float], str] | None = None,
    forbidden: Bool[Tensor, "T S"] | None = None,
) -> AxesImage:
    """Draw the cells with their labels, and their numbers where there is room.

    Args:
        axes: Where to draw.
        weights: The numbers.
        rows: Labels of the queries.
        columns: Labels of the keys.
        title: A pale line above.
        shades: Shades from 0 to 1; by default the root of the weights, which shows small ones.
        format_value: Formats a number; by default with two decimals.
        forbidden: True for cells that the causal mask forbids; they are hatched.
    """
    values = weights.double().numpy()
    shown = values
    norm: Normalize = PowerNorm(0.5, vmin=0, vmax=1)
    if shades is not None:
        shown = shades.double().numpy()
        norm = Normalize(0, 1)

    image = axes.imshow(shown, cmap=BLUES, norm=norm, aspect="equal")
    if forbidden is not None:
        hatch(axes, *values.shape)

    label_cells(axes, rows, columns)
    hide_frame(axes)

    count = max(values.shape)
    if count <= NUMBERED:
        font = min(font_of(count), side_of(count) * POINTS * 0.3)
        form = format_value or partial(cell_text, few=count <= FEW)
        texts = [list(map(form, row)) for row in values]
        if forbidden is not None:
            for row, column in forbidden.nonzero().tolist():
                texts[row][column] = ""

        write_cells(axes, texts, norm(shown) > 0.6, font)
        separate_cells(axes, *values.shape)

    if title:
        axes.set_title(title, fontsize=12, color=PALE, loc="left")

    return image


def hatch(axes: Axes, rows: int, columns: int) -> None:
    """Hatch the cells above the diagonal, which the causal mask forbids: they are no zeros."""
    corners = [(columns - 0.5, -0.5)]
    for row in range(min(rows, columns)):
        corners += [(row + 0.5, row - 0.5), (row + 0.5, row + 0.5)]

    corners.append((columns - 0.5, min(rows, columns) - 0.5))
    triangle = Polygon(
        corners, facecolor="white", edgecolor=LEFT_OUT, hatch="////", linewidth=0, zorder=1
    )
    axes.add_patch(triangle)


def label_cells(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Labels of rows and columns; if there are very many, every second, third and so on."""
    count = max(len(rows), len(columns))
    every = -(-count // NAMED)
    font = font_of(count)
    angle = tilt(columns, count)
    shown = columns[::every]
    axes.set_xticks(range(0, len(columns), every), shown, fontsize=font, color=INK, rotation=angle)
    axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize=font, color=INK)
    if angle == 0:
        return

    vertical = "top" if angle == 45 else "center"
    for name in axes.get_xticklabels():
        name.set(ha="right", va=vertical, rotation_mode="anchor")


def cell_text(value: float, few: bool) -> str:
    """A weight with two decimals; among many cells none for a weight near 0."""
    if few:
        return f"{value:.2f}"
    if value < 0.005:
        return ""

    return f"{value:.2f}".removeprefix("0")


def separate_cells(axes: Axes, rows: int, columns: int) -> None:
    """White lines between the cells."""
    for edge in range(1, rows):
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)

    for edge in range(1, columns):
        axes.axvline(edge - 0.5, color="white", linewidth=1.5)


# All heads


def all_heads(attention: CapturedAttention, title: str, below: str) -> Figure:
    """Small heat maps, layers down and heads across; many layers continue in further columns."""
    layers, heads = attention.overview.shape[:2]
    blocks = min(3, max(1, round(math.sqrt(layers / heads))))
    deep = -(-layers // blocks)
    side = min(1.15, 15 / (heads * blocks), 12 / deep)  # inches of a head
    font = max(8.0, min(14.0, side * 18))
    figure = canvas(max(6.4, (side * heads * GAP + 0.8) * blocks), side * deep * GAP + 1.4)
    panels = figure.subplots(1, blocks, squeeze=False)[0]
    for number, axes in enumerate(panels):
        first = number * deep
        draw_tiles(axes, attention.overview[first : first + deep], first, deep, font)

    panels[0].set_title(below, fontsize=12, color=PALE, loc="left")
    panels[0].set_ylabel("layer", fontsize=13)
    write_title(figure, title)

    return figure


def draw_tiles(
    axes: Axes, overview: Float[Tensor, "L H t s"], first: int, deep: int, font: float
) -> None:
    """A block of `deep` layers that starts with layer `first`, each head a square tile."""
    layers, heads, t, s = overview.shape
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for layer in range(layers):
        for head in range(heads):
            left = head * GAP * s
            top = layer * GAP * t
            extent = (left, left + s, top + t, top)
            axes.imshow(overview[layer, head].numpy(), cmap=BLUES, norm=norm, extent=extent)

    axes.set_xlim(0, (heads - 1) * GAP * s + s)
    axes.set_ylim((deep - 1) * GAP * t + t, 0)
    axes.set_aspect(s / t)
    middles = np.arange(heads) * GAP * s + s / 2
    axes.set_xticks(middles, map(str, range(heads)), fontsize=font, color=INK)
    middles = np.arange(layers) * GAP * t + t / 2
    axes.set_yticks(middles, map(str, range(first, first + layers)), fontsize=font, color=INK)
    axes.set_xlabel("head", fontsize=13)
    hide_frame(axes)
