"""Attention as lines between tokens for slides; several heads are drawn in their colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from qkv.insight.render.figures.attention import NAMED, POINTS, write_title
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, canvas, hide_frame
from qkv.insight.render.views import AttentionView

MANY_LINES = 4000
FAINT = 0.02  # smaller weights are not drawn


def lines_between(view: AttentionView, model: str) -> Figure:
    """Queries on the left, keys on the right; the larger a weight, the more opaque its line.

    In cross-attention the source is on the left, since it is read first. More heads than there
    are colours are drawn as their mean.
    """
    weights = view.weights
    if len(view.heads) >= len(COLOURS):
        weights = weights.mean(0, keepdim=True)

    left = view.rows
    right = view.columns
    direction = "left attends to right"
    if view.attention.kind == "cross":
        left = view.columns
        right = view.rows
        direction = "right attends to left"
        weights = weights.mT

    count = max(len(left), len(right))
    font = font_of(count)
    high = min(14.0, max(2.4, count * font * 1.75 / POINTS))
    figure = canvas(8.4, high + 1.5)
    axes = figure.add_subplot()
    draw_heads(axes, weights)
    draw_names(axes, left, count, font, x=-0.015, align="right")
    draw_names(axes, right, count, font, x=1.015, align="left")

    axes.set_xlim(0, 1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    hide_frame(axes)
    axes.set_title(f"{model}: {direction}", fontsize=12, color=PALE, loc="left")
    if len(weights) > 1:
        draw_legend(figure, view.heads)
        write_title(figure, view.site)
    else:
        write_title(figure, view.name)

    return figure


def font_of(count: int) -> float:
    if count <= 12:
        return 16.0

    return max(6.0, 17 - 0.16 * count)


def draw_heads(axes: Axes, weights: Float[Tensor, "H T S"]) -> None:
    """The lines of each head, slightly shifted so that no head hides another."""
    heads = len(weights)
    for number, head_weights in enumerate(weights):
        shift = 0.3 * ((number + 0.5) / heads - 0.5)
        axes.add_collection(strands(head_weights, COLOURS[number], MANY_LINES // heads, shift))


def draw_names(
    axes: Axes, names: Sequence[str], count: int, font: float, x: float, align: str
) -> None:
    """The labels of one side; if there are very many, every second, third and so on."""
    every = -(-count // NAMED)
    for index in range(0, len(names), every):
        axes.text(
            x,
            height(index, len(names), count),
            names[index],
            ha=align,
            va="center_baseline",
            fontsize=font,
            color=INK,
            in_layout=True,
        )


def draw_legend(figure: Figure, heads: Sequence[int]) -> None:
    """The colours of the heads."""
    entries = []
    for colour, head in zip(COLOURS, heads, strict=False):
        entries.append(Line2D([], [], color=colour, linewidth=4, label=f"head {head}"))

    columns = min(6, len(entries))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=13
    )


def height(index: int, length: int, count: int) -> float:
    """The y coordinate of a token: the shorter side is centred beside the longer one."""
    return index + (count - length) / 2


def strands(weights: Float[Tensor, "T S"], colour: str, most: int, shift: float) -> LineCollection:
    """A smooth line for each pair with weight, the heaviest last so that they lie on top."""
    T, S = weights.shape
    count = max(T, S)
    flat = weights.reshape(-1)
    heaviest = flat.topk(min(most, flat.numel()))
    x = np.linspace(0, 1, 49)
    ease = x**2 * (3 - 2 * x)  # level at both ends

    paths = []
    colours = []
    widths = []
    pairs = zip(heaviest.values.tolist(), heaviest.indices.tolist(), strict=True)
    for value, pair in reversed(list(pairs)):
        weight = min(1.0, value)
        if weight < FAINT:
            continue

        left = height(pair // S, T, count)
        right = height(pair % S, S, count)
        paths.append(np.column_stack([x, shift + left + (right - left) * ease]))
        colours.append((*to_rgb(colour), weight))
        widths.append((1 + 3 * math.sqrt(weight)) * min(1.0, 30 / count))

    return LineCollection(paths, colors=colours, linewidths=widths, capstyle="round")
