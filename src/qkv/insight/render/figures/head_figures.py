"""Figures of attention heads: ablation, attention patterns, syntax and activation patching."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from qkv.insight.heads.head_ablation import Head, HeadImportance
from qkv.insight.heads.head_patterns import HeadPatterns
from qkv.insight.heads.head_syntax import RelationScore, SyntaxResult
from qkv.insight.inspect.activation_patching import PatchResult
from qkv.insight.render.figures.figure_style import (
    COLOURS,
    INK,
    PALE,
    annotate,
    canvas,
    colour_bar,
)
from qkv.insight.render.views import label

# Zero is white, blue is below and vermilion above: colour-blind readers can tell them apart.
DIVERGING = LinearSegmentedColormap.from_list(
    "change", ["#08519C", "#6BAED6", "#FFFFFF", "#F4A582", "#B2400E"]
)
RISING = LinearSegmentedColormap.from_list("part", ["#FFFFFF", "#9ECAE1", "#2171B5", "#08306B"])
RANKED = 16  # heads that have a bar
MARKED = 3  # heads that have a circle in a heat map ...
WORTH_MARKING = 0.25  # ... if their score is at least this
SHALLOW = 12  # layers; deeper models have five maps in a row instead of three
LONGEST = 14  # characters of a token
NAMED = 60  # tokens that have room for their names
LINES = 4  # of the text at the bottom
UNDER_AXES = 42  # points that the ticks and the label of an x axis take
BAR = 0.36  # height of a bar; two stand side by side


# Ablation


def importance_figure(importance: HeadImportance, title: str) -> Figure:
    """A heat map of layers and heads per kind of attention, and the largest changes as bars."""
    kinds = list(importance.change)
    deepest = max(map(len, importance.change.values()))
    heads = importance.change[kinds[0]].shape[1]
    width = max(2.2, 0.3 * heads + 0.9)
    figure, grid = sheet(
        width * len(kinds) + 5.2,
        max(4.6, 0.19 * deepest + 2.0),
        [*[width] * len(kinds), 4.2],
    )
    unit = "nats" if importance.measure == "loss" else "1 - cosine"

    draw_changes(figure, grid, importance, unit)
    bars = figure.add_subplot(grid[0, len(kinds)])
    draw_ranking(bars, importance.ranked()[:RANKED], several=len(kinds) > 1)
    bars.set_xlabel(f"{unit}, with 95% intervals")
    write_texts(figure, title, importance.summary)

    return figure


def draw_changes(figure: Figure, grid: GridSpec, importance: HeadImportance, unit: str) -> None:
    """A heat map per kind of attention, all with the same colours."""
    largest = max(float(np.abs(change).max()) for change in importance.change.values()) or 1.0
    for index, (kind, change) in enumerate(importance.change.items()):
        axes = figure.add_subplot(grid[0, index])
        title = "" if kind == "self" else kind
        image = heat(axes, change, title, DIVERGING, TwoSlopeNorm(0, -largest, largest))

    colour_bar(axes, image, f"change in {importance.measure}, {unit}", 9, shrink=0.8)


def draw_ranking(axes: Axes, ranked: Sequence[Head], several: bool) -> None:
    """A bar with its interval for each head, named by layer.head."""
    y = np.arange(len(ranked))
    names = []
    for at, head in enumerate(ranked):
        name = f"{head.layer}.{head.head}"
        if several:
            name = f"{head.kind} {name}"

        names.append(name)
        if not np.isnan(head.low):
            axes.plot([head.low, head.high], [at, at], color=INK, linewidth=1.2)

    axes.barh(y, [head.change for head in ranked], color=COLOURS[1], height=0.7)
    axes.set_yticks(y, names)
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.axvline(0, color=PALE, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title("largest change, layer.head", fontsize=11, loc="left")


# Attention patterns


def patterns_figure(patterns: Sequence[HeadPatterns], title: str) -> Figure:
    """A heat map of layers and heads for each pattern, the strongest heads named."""
    maps = [(kind, name) for kind in patterns for name in kind.scores]
    first, name = maps[0]
    layers, heads = first.scores[name].shape
    columns = min(len(maps), 5 if layers > SHALLOW else 3)
    rows = -(-len(maps) // columns)
    width = max(2.4, 0.2 * heads + 1.0)
    height = max(2.2, 0.17 * layers + 1.3)
    figure, grid = sheet(width * columns + 0.9, height * rows + 1.0, [width] * columns, rows)

    for index, (kind, name) in enumerate(maps):
        axes = figure.add_subplot(grid[divmod(index, columns)])
        image = draw_pattern(axes, kind, name)
        if index % columns:
            axes.set_ylabel("")
        if index == columns - 1:
            colour_bar(axes, image, "share of the weight", 9, shrink=0.8)

    write_texts(
        figure,
        title,
        "share of a head's attention weight that follows the pattern; circles: the strongest "
        "three; uniform: the score of a head that attends equally everywhere",
    )

    return figure


def draw_pattern(axes: Axes, patterns: HeadPatterns, name: str) -> Any:
    """One pattern: scores by layer and head, circles around the strongest, the best two named."""
    title = name if patterns.kind == "self" else f"{patterns.kind}: {name}"
    image = heat(axes, patterns.scores[name].numpy(), title, RISING, None, (0, 1))
    circle: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": COLOURS[1]}
    for layer, head, score in patterns.strongest(name, MARKED):
        if score >= WORTH_MARKING:
            axes.plot(head, layer, "o", markersize=7, **circle)

    best = []
    for layer, head, score in patterns.strongest(name, 2):
        best.append(f"{layer}.{head} {score:.2f}")

    axes.set_xlabel(f"{', '.join(best)}\nuniform {patterns.uniform[name]:.2f}", fontsize=9)

    return image


# Syntax


def syntax_figure(syntax: SyntaxResult, title: str) -> Figure:
    """Bars: the best head of each relation, and the best fixed offset beside it."""
    relations = syntax.relations
    figure, grid = sheet(8.8, 0.36 * len(relations) + 2.4, [1])
    axes = figure.add_subplot(grid[0, 0])
    draw_relation_bars(axes, relations)
    for at, relation in enumerate(relations):
        annotate_relation(axes, relation, at)

    axes.set_yticks(
        np.arange(len(relations)),
        [f"{label(relation.name)}  {relation.words:,}" for relation in relations],
    )
    axes.set_ylim(len(relations) - 0.4, -0.6)
    axes.set_xlim(0, 114)
    axes.set_xlabel(
        "accuracy, %;  layer.head: → word attends to its head, ← head to the word;  then the offset"
    )
    axes.grid(axis="y", visible=False)
    draw_legend_below(figure, axes)

    write_texts(figure, title, f"{syntax.summary}; lines: 95% intervals")

    return figure


def draw_relation_bars(axes: Axes, relations: Sequence[RelationScore]) -> None:
    """Two bars for each relation: the best head above, the best fixed offset below."""
    y = np.arange(len(relations))
    heads = []
    offsets = []
    for relation in relations:
        heads.append(100 * relation.accuracy)
        offsets.append(100 * relation.baseline)

    axes.barh(y - 0.19, heads, BAR, color=COLOURS[0], label="best head")
    axes.barh(y + 0.19, offsets, BAR, color="#BBBBBB", label="best fixed offset")


def annotate_relation(axes: Axes, relation: RelationScore, at: float) -> None:
    """The interval of the head's bar, and to the right of both bars the head and the offset."""
    right = max(relation.accuracy, relation.baseline)
    if not np.isnan(relation.low):
        right = max(right, relation.high)
        ends = [100 * relation.low, 100 * relation.high]
        axes.plot(ends, [at - 0.19, at - 0.19], color=INK, linewidth=1.2)

    annotate(axes, f"{relation.named_head}   {relation.offset:+d}", (100 * right, at), (6, 0))


def draw_legend_below(figure: Figure, axes: Axes) -> None:
    """A legend right below the axes: a figure's legend would cover the text at the bottom."""
    below = axes.transAxes + ScaledTranslation(0, -UNDER_AXES / 72, figure.dpi_scale_trans)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        ncols=2,
        fontsize=10,
    )


# Activation patching


def patched_figure(patched: PatchResult, names: Sequence[str], title: str, below: str) -> Figure:
    """Layers down, tokens or heads across: how much of the clean answer is restored."""
    layers, columns = patched.restored.shape
    figure, grid = sheet(max(7.2, 0.42 * columns + 2.6), max(4.2, 0.17 * layers + 2.4), [1])
    axes = figure.add_subplot(grid[0, 0])
    largest = max(1.0, float(patched.restored.abs().max()))
    norm = TwoSlopeNorm(0, -largest, largest)
    image = heat(axes, patched.restored.numpy(), "", DIVERGING, norm)
    if patched.at != "heads":
        axes.set_xlabel("token")

    if patched.at != "heads" and columns <= NAMED:
        shown = [label(name, LONGEST) for name in names]
        axes.set_xticks(range(columns), shown, rotation=60, ha="right", rotation_mode="anchor")

    colour_bar(axes, image, "0: as corrupted, 1: as clean", 9, shrink=0.8)
    write_texts(figure, title, below)

    return figure


# Shared drawing steps


def sheet(
    width: float, height: float, widths: Sequence[float], rows: int = 1
) -> tuple[Figure, GridSpec]:
    """A figure of this size in inches and a grid with these relative column widths."""
    figure = canvas(min(width, 24), min(height, 20))
    return figure, GridSpec(rows, len(widths), width_ratios=list(widths), figure=figure)


def heat(
    axes: Axes,
    values: Any,
    title: str,
    colours: Any,
    norm: Any = None,
    ends: tuple[float, float] | None = None,
) -> Any:
    """Draw a heat map with layers down and heads or tokens across; return its image."""
    low, high = ends or (None, None)
    image = axes.imshow(
        values, cmap=colours, norm=norm, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))

    if title:
        axes.set_title(title, fontsize=11, loc="left")

    return image


def write_texts(figure: Figure, title: str, below: str) -> None:
    """Write a title, and in a paler line at the bottom how the numbers were measured."""
    width = int(11.5 * figure.get_figwidth())  # characters of one line
    figure.suptitle(label(title, width), fontsize=16, fontweight="bold", x=0.012, ha="left")
    text = fill(label(below, LINES * width), width)
    figure.supxlabel(text, fontsize=10, color=PALE, x=0.012, ha="left")
