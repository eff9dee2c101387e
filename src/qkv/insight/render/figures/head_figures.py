"""Pictures of heads: which matter, what they do, which grammar they know, and where an answer comes
from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from qkv.insight.heads.head_ablation import Importance
from qkv.insight.heads.head_patterns import HeadPatterns
from qkv.insight.heads.head_syntax import Syntax
from qkv.insight.inspect.activation_patching import Patched
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, check_ending, save
from qkv.insight.render.views import label

# Zero is white: blue below, vermilion above, which all eyes tell apart.
DIVERGING = LinearSegmentedColormap.from_list(
    "change", ["#08519C", "#6BAED6", "#FFFFFF", "#F4A582", "#B2400E"]
)
RISING = LinearSegmentedColormap.from_list("part", ["#FFFFFF", "#9ECAE1", "#2171B5", "#08306B"])
RANKED = 16  # heads that have a bar
MARKED, WORTH_MARKING = (
    3,
    0.25,
)  # heads that have a circle in a heat map, if they play their role so much
SHALLOW = 12  # layers: of fewer, a picture has more rows than one
LONGEST = 14  # characters of a token's name
NAMED = 60  # tokens that have room for their names
LINES = 4  # of what is said below
UNDER_AXES = 42  # points: so deep are the ticks of an axis and its label


def draw_importance(found: Importance, path: Path, title: str) -> Path:
    """A heat map of layers and heads for each kind of attention, and the heads that are missed most
    as bars.
    """
    check_ending(path, "plot")
    return save(lambda: importance(found, title), path)


def importance(found: Importance, title: str) -> Figure:
    kinds = list(found.change)
    L, H = max(each.shape[0] for each in found.change.values()), found.change[kinds[0]].shape[1]
    width = max(2.2, 0.3 * H + 0.9)
    figure, grid = sheet(
        width * len(kinds) + 5.2, max(4.6, 0.19 * L + 2.0), [*[width] * len(kinds), 4.2]
    )
    most = max(float(np.abs(each).max()) for each in found.change.values()) or 1.0
    unit = "nats" if found.measure == "loss" else "1 - cosine"

    for place, kind in enumerate(kinds):
        axes = figure.add_subplot(grid[0, place])
        drawn = heat(
            axes,
            found.change[kind],
            "" if kind == "self" else kind,
            DIVERGING,
            TwoSlopeNorm(0, -most, most),
        )

        if place == len(kinds) - 1:
            colour_bar(figure, axes, drawn, f"change of the {found.measure}, {unit}")

    ranked = found.ranked()[:RANKED]
    bars = figure.add_subplot(grid[0, len(kinds)])
    y = np.arange(len(ranked))
    bars.barh(y, [each.change for each in ranked], color=COLOURS[1], height=0.7)

    for at, each in zip(y, ranked, strict=True):
        if each.low == each.low:  # there is an interval
            bars.plot([each.low, each.high], [at, at], color=INK, linewidth=1.2)

    several = len(kinds) > 1
    names = [
        f"{each.kind} {each.layer}.{each.head}" if several else f"{each.layer}.{each.head}"
        for each in ranked
    ]
    bars.set_yticks(y, names)
    bars.set_ylim(len(ranked) - 0.4, -0.6)
    bars.grid(axis="y", visible=False)
    bars.axvline(0, color=PALE, linewidth=1)
    bars.xaxis.set_major_locator(MaxNLocator(4))
    bars.set_xlabel(f"{unit}, with 95% intervals")
    bars.set_title("most missed, layer.head", fontsize=11, loc="left")
    said = "zeros" if found.how == "zero" else "its mean"
    told = (
        f"{found.measure} {found.unchanged:.3f} with all heads"
        if found.measure == "loss"
        else "of the text's vector"
    )
    over(figure, title, f"each head's output replaced by {said}; {told}; {found.texts:,} texts")

    return figure


def draw_patterns(found: Sequence[HeadPatterns], path: Path, title: str) -> Path:
    """A heat map of layers and heads for each role, the strongest heads named."""
    check_ending(path, "plot")
    return save(lambda: all_patterns(found, title), path)


def all_patterns(found: Sequence[HeadPatterns], title: str) -> Figure:
    maps = [(each, role) for each in found for role in each.scores]
    L, H = maps[0][0].scores[maps[0][1]].shape
    columns = min(len(maps), 5 if L > SHALLOW else 3)
    rows = -(-len(maps) // columns)
    width, height = max(2.4, 0.2 * H + 1.0), max(2.2, 0.17 * L + 1.3)
    figure, grid = sheet(width * columns + 0.9, height * rows + 1.0, [width] * columns, rows)

    for place, (each, role) in enumerate(maps):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        name = role if each.kind == "self" else f"{each.kind}: {role}"
        drawn = heat(axes, each.scores[role].numpy(), name, RISING, None, (0, 1))
        if place % columns:
            axes.set_ylabel("")

        for layer, head, score in each.strongest(role, MARKED):
            if score >= WORTH_MARKING:
                axes.plot(
                    head,
                    layer,
                    "o",
                    markersize=7,
                    markerfacecolor="none",
                    markeredgecolor=COLOURS[1],
                )

        best = ", ".join(
            f"{layer}.{head} {score:.2f}" for layer, head, score in each.strongest(role, 2)
        )
        axes.set_xlabel(f"{best}\neven {each.even[role]:.2f}", fontsize=9)
        if place == columns - 1:
            colour_bar(figure, axes, drawn, "part of its weight")

    told = "how much of a head's weight goes where its role says; circles: the strongest three; even: of a head that"
    over(figure, title, f"{told} looks at all it may see alike")

    return figure


def draw_syntax(found: Syntax, path: Path, title: str) -> Path:
    """Bars: the best head of each relation, and the best fixed offset beside it."""
    check_ending(path, "plot")
    return save(lambda: relations(found, title), path)


def relations(found: Syntax, title: str) -> Figure:
    shown = found.relations
    figure, grid = sheet(8.8, 0.36 * len(shown) + 2.4, [1])
    axes = figure.add_subplot(grid[0, 0])
    y = np.arange(len(shown))
    axes.barh(
        y - 0.19,
        [100 * each.accuracy for each in shown],
        0.36,
        color=COLOURS[0],
        label="the best head",
    )

    axes.barh(
        y + 0.19,
        [100 * each.baseline for each in shown],
        0.36,
        color="#BBBBBB",
        label="the best fixed offset",
    )

    for at, each in zip(y, shown, strict=True):
        ends = [100 * end for end in (each.low, each.high)]
        if ends[0] == ends[0]:
            axes.plot(ends, [at - 0.19, at - 0.19], color=INK, linewidth=1.2)

        arrow = "→" if each.direction == "to its head" else "←"
        far = 100 * max(each.accuracy, each.baseline, each.high if each.high == each.high else 0)
        said = f"{each.layer}.{each.head} {arrow}   {each.offset:+d}"
        axes.annotate(
            said,
            (far, at),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=PALE,
        )

    axes.set_yticks(y, [f"{label(each.name)}  {each.words:,}" for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 114)
    axes.set_xlabel(
        "found, %;  layer.head → word looks at its head, ← is looked at;  then the offset"
    )
    axes.grid(axis="y", visible=False)
    # Not the figure's own legend, which would lie on what is said at the bottom.
    below = axes.transAxes + ScaledTranslation(0, -UNDER_AXES / 72, figure.dpi_scale_trans)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        ncols=2,
        fontsize=10,
    )

    how = (
        "chosen on one half of the sentences, measured on the other"
        if found.halves
        else "chosen where it is measured"
    )
    over(
        figure, title, f"{found.sentences:,} sentences; head and offset {how}; lines: 95% intervals"
    )

    return figure


def draw_patched(found: Patched, names: Sequence[str], path: Path, title: str, below: str) -> Path:
    """Layers down; tokens or heads across: how much of the clean answer comes back."""
    check_ending(path, "plot")
    return save(lambda: patched(found, names, title, below), path)


def patched(found: Patched, names: Sequence[str], title: str, below: str) -> Figure:
    L, N = found.restored.shape
    figure, grid = sheet(max(7.2, 0.42 * N + 2.6), max(4.2, 0.17 * L + 2.4), [1])
    axes = figure.add_subplot(grid[0, 0])
    most = max(1.0, float(found.restored.abs().max()))
    drawn = heat(axes, found.restored.numpy(), "", DIVERGING, TwoSlopeNorm(0, -most, most))
    axes.set_xlabel("head" if found.at == "heads" else "token")
    if found.at != "heads" and N <= NAMED:
        axes.set_xticks(
            range(N),
            [label(name, LONGEST) for name in names],
            rotation=60,
            ha="right",
            rotation_mode="anchor",
        )

    colour_bar(figure, axes, drawn, "0: as corrupted, 1: as clean")
    over(figure, title, below)

    return figure


# What they share


def sheet(
    width: float, height: float, widths: Sequence[float], rows: int = 1
) -> tuple[Figure, GridSpec]:
    figure = Figure(
        figsize=(min(width, 24), min(height, 20)),
        layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
    )
    return figure, GridSpec(rows, len(widths), width_ratios=list(widths), figure=figure)


def heat(
    axes: Axes,
    values: Any,
    title: str,
    colours: Any,
    norm: Any = None,
    ends: tuple[float, float] | None = None,
) -> Any:
    """Layers down, heads or tokens across."""
    low, high = ends or (None, None)
    drawn = axes.imshow(
        values, cmap=colours, norm=norm, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))

    if title:
        axes.set_title(title, fontsize=11, loc="left")

    return drawn


def colour_bar(figure: Figure, axes: Axes, drawn: Any, label: str) -> None:
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.03)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def over(figure: Figure, title: str, below: str) -> None:
    """What it is, and in a paler line at the bottom how it was found."""
    letters = int(11.5 * figure.get_figwidth())  # of one line
    figure.suptitle(label(title, letters), fontsize=16, fontweight="bold", x=0.012, ha="left")
    figure.supxlabel(
        fill(label(below, LINES * letters), letters), fontsize=10, color=PALE, x=0.012, ha="left"
    )
