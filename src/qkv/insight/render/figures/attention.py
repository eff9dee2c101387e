"""Attention for slides: a head as a heat map, all heads at a glance, lines between words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from rich.cells import cell_len
from torch import Tensor

from qkv.insight.inspect.capture import Attention
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE
from qkv.insight.render.views import AttentionView

# Not from white: an empty cell is still a cell.
BLUES = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 1, 256)), name="qkv-blues")
NUMBERED = 20  # rows or columns whose cells have room for their numbers
FEW = 6  # with so few, zeros are written, too
NAMED = 64  # names along a side; of more, every second, every third ...
LETTER = 0.62  # how wide a letter is, of its font's size
POINTS = 72  # to an inch
MANY_LINES = 4000
FAINT = 0.02  # weights below are no lines
TICKS = (0, 0.05, 0.25, 0.5, 1)


def canvas(wide: float, high: float) -> Figure:
    return Figure(
        figsize=(wide, high), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.03)
    )


def entitle(figure: Figure, title: str) -> None:
    """Above everything, from the left edge, in as many lines as it needs."""
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
) -> Figure:
    """A row for each word that looks, a column for each that is looked at; the darker, the more."""
    wide, high = room(rows, columns)
    scaled = max(weights.shape) > NUMBERED
    figure = canvas(max(6.4, wide + 0.35 + 1.0 * scaled), high + 1.3)
    axes = figure.add_subplot()
    image = matrix(axes, weights, rows, columns, below)
    axes.set_xlabel(column_name, fontsize=13)
    axes.set_ylabel(row_name, fontsize=13)
    if scaled:
        scale(figure, image, [axes])

    entitle(figure, title)

    return figure


def side_of(count: int) -> float:
    """Of a cell, in inches: all of a long text have the room of one slide."""
    return (
        1.15
        if count <= 4
        else 0.85
        if count <= 8
        else 0.62
        if count <= 14
        else 10.4 / max(20, count)
    )


def font_of(count: int) -> float:
    return (
        18
        if count <= 4
        else 16
        if count <= 8
        else 14
        if count <= 14
        else max(7.0, 14 - 0.12 * count)
    )


def length(names: Sequence[str], count: int) -> float:
    """Of the longest name, in inches."""
    return max(map(cell_len, names), default=1) * LETTER * font_of(count) / POINTS


def tilt(columns: Sequence[str], count: int) -> int:
    """Names of columns lie flat if they have room; in degrees."""
    if length(columns, count) <= 0.88 * side_of(count):
        return 0

    return 45 if count <= 32 else 90


def room(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    """How wide and high a matrix with its names is, in inches."""
    count = max(len(rows), len(columns))
    below = (
        length(columns, count) * math.sin(math.radians(tilt(columns, count)))
        + font_of(count) / POINTS
    )
    return side_of(count) * len(columns) + length(rows, count), max(
        1.2, side_of(count) * len(rows)
    ) + below


def matrix(
    axes: Axes,
    weights: Float[Tensor, "T S"],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    *,
    shades: Float[Tensor, "T S"] | None = None,
    say: Callable[[float], str] | None = None,
) -> AxesImage:
    """The cells with the words beside them, and their numbers where there is room.

    Shades are the root of the weights unless given, from 0 to 1: a few hundredths of the attention
    are seen, too.
    """
    values = weights.double().numpy()
    shown, norm = (
        (values, PowerNorm(0.5, vmin=0, vmax=1))
        if shades is None
        else (shades.double().numpy(), Normalize(0, 1))
    )
    image = axes.imshow(shown, cmap=BLUES, norm=norm, aspect="equal")
    count = max(values.shape)
    font, turn, every = font_of(count), tilt(columns, count), -(-count // NAMED)
    axes.set_xticks(
        range(0, len(columns), every), columns[::every], fontsize=font, color=INK, rotation=turn
    )
    axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize=font, color=INK)

    for name in axes.get_xticklabels() if turn else ():
        name.set(ha="right", va="top" if turn == 45 else "center", rotation_mode="anchor")

    bare(axes)
    if count <= NUMBERED:
        write_numbers(axes, values, norm(shown), min(font, side_of(count) * POINTS * 0.3), say)

    if title:
        axes.set_title(title, fontsize=12, color=PALE, loc="left")

    return image


def write_numbers(
    axes: Axes,
    values: Float[np.ndarray, "T S"],
    shades: Float[np.ndarray, "T S"],
    font: float,
    say: Callable[[float], str] | None,
) -> None:
    few = max(values.shape) <= FEW
    for (row, column), value in np.ndenumerate(values):
        if say is not None or few or value >= 0.005:
            text = (
                say(value)
                if say is not None
                else f"{value:.2f}"
                if few
                else f"{value:.2f}".removeprefix("0")
            )

            colour = "white" if shades[row, column] > 0.6 else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)

    for edge in range(1, values.shape[0]):
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)

    for edge in range(1, values.shape[1]):
        axes.axvline(edge - 0.5, color="white", linewidth=1.5)


def bare(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def scale(figure: Figure, image: AxesImage, beside: Sequence[Axes]) -> None:
    bar = figure.colorbar(image, ax=list(beside), ticks=TICKS, shrink=0.6, aspect=30, pad=0.02)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in TICKS])
    bar.ax.tick_params(labelsize=11, length=0)
    bar.set_label("weight", fontsize=12)
    bar.outline.set_visible(False)


# All heads


def all_heads(attention: Attention, title: str, below: str) -> Figure:
    """Layers down, heads across: a picture of small pictures. Many layers stand beside each other,
    as in columns.
    """
    L, H = attention.overview.shape[:2]
    if not L:
        raise ValueError("heads: this look has no overview of its heads")

    blocks = min(3, max(1, round(math.sqrt(L / H))))
    deep = -(-L // blocks)
    side = min(1.15, 15 / (H * blocks), 12 / deep)  # inches of a head
    figure = canvas(max(6.4, (side * H * 1.08 + 0.8) * blocks), side * deep * 1.08 + 1.4)

    for number, axes in enumerate(figure.subplots(1, blocks, squeeze=False)[0]):
        first = number * deep
        tiles(
            axes,
            attention.overview[first : first + deep],
            first,
            deep,
            font=max(8.0, min(14.0, side * 18)),
        )

        if not number:
            axes.set_title(below, fontsize=12, color=PALE, loc="left")
            axes.set_ylabel("layer", fontsize=13)

    entitle(figure, title)

    return figure


def tiles(axes: Axes, heads: Float[Tensor, "L H t s"], first: int, deep: int, font: float) -> None:
    L, H, t, s = heads.shape
    down, across = (1.08 * each for each in (t, s))  # from one head to the next
    for layer in range(L):
        for number in range(H):
            left, top = number * across, layer * down
            axes.imshow(
                heads[layer, number].numpy(),
                cmap=BLUES,
                norm=PowerNorm(0.5, vmin=0, vmax=1),
                extent=(left, left + s, top + t, top),
            )

    axes.set_xlim(0, (H - 1) * across + s)
    axes.set_ylim((deep - 1) * down + t, 0)
    axes.set_aspect(s / t)  # every head is a square
    axes.set_xticks(
        [number * across + s / 2 for number in range(H)],
        map(str, range(H)),
        fontsize=font,
        color=INK,
    )

    axes.set_yticks(
        [layer * down + t / 2 for layer in range(L)],
        map(str, range(first, first + L)),
        fontsize=font,
        color=INK,
    )

    axes.set_xlabel("head", fontsize=13)
    bare(axes)


# Lines


def lines_between(seen: AttentionView, model: str) -> Figure:
    """Who looks on the left, at whom on the right; the heavier, the darker; each head in its
    colour.

    A source is on the left of its target, as it is read first.
    """
    across = seen.attention.kind == "cross"
    left, right = (seen.columns, seen.rows) if across else (seen.rows, seen.columns)
    count = max(len(left), len(right))
    font = 16 if count <= 12 else max(6.0, 17 - 0.16 * count)
    high = min(14.0, max(2.4, count * font * 1.75 / POINTS))
    figure = canvas(8.4, high + 1.5)
    axes = figure.add_subplot()
    many = len(seen.heads) >= len(COLOURS)  # more than there are colours to tell them apart
    weights = seen.weights.mean(0, keepdim=True) if many else seen.weights  # (H, T, S)

    for number in range(weights.shape[0]):
        beside = 0.3 * ((number + 0.5) / weights.shape[0] - 0.5)  # so that no head hides another
        drawn = (
            weights[number].T if across else weights[number]
        )  # from the left (T, or S) to the right
        axes.add_collection(strands(drawn, COLOURS[number], MANY_LINES // weights.shape[0], beside))

    every = -(-count // NAMED)

    for names, x, side in ((left, -0.015, "right"), (right, 1.015, "left")):
        for place in range(0, len(names), every):
            y = height(place, len(names), count)
            axes.text(
                x,
                y,
                names[place],
                ha=side,
                va="center_baseline",
                fontsize=font,
                color=INK,
                in_layout=True,
            )

    axes.set_xlim(0, 1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)
    who = "right looks at left" if across else "left looks at right"
    axes.set_title(f"{model}: {who}", fontsize=12, color=PALE, loc="left")
    if weights.shape[0] > 1:
        entries = [
            Line2D([], [], color=COLOURS[number], linewidth=4, label=f"head {head}")
            for number, head in enumerate(seen.heads)
        ]
        figure.legend(
            handles=entries,
            loc="outside lower center",
            ncols=min(6, len(entries)),
            frameon=False,
            fontsize=13,
        )

    entitle(figure, seen.name if weights.shape[0] == 1 else seen.place)

    return figure


def height(place: int, own: int, count: int) -> float:
    """The shorter side stands in the middle of the longer."""
    return place + (count - own) / 2


def strands(weights: Float[Tensor, "T S"], colour: str, most: int, beside: float) -> LineCollection:
    """A smooth line for each pair that has weight, the heaviest last so that they lie on top."""
    T, S = weights.shape
    flat = weights.reshape(-1)
    heaviest = flat.topk(min(most, flat.numel()))
    kept = [
        (w, p) for w, p in zip(*(each.tolist() for each in heaviest), strict=True) if w >= FAINT
    ][::-1]
    across = np.linspace(0, 1, 49)
    ease = across**2 * (3 - 2 * across)  # level at both ends
    paths, colours, widths = [], [], []

    for weight, pair in kept:
        left, right = height(pair // S, T, max(T, S)), height(pair % S, S, max(T, S))
        paths.append(np.column_stack([across, beside + left + (right - left) * ease]))
        colours.append((*to_rgb(colour), min(1.0, weight)))
        widths.append((1 + 3 * math.sqrt(min(1.0, weight))) * min(1.0, 30 / max(T, S)))

    return LineCollection(paths, colors=colours, linewidths=widths, capstyle="round")
