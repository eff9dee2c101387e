"""The figure of an experiment: each seed thin, the mean with its 95% interval.

The same functions draw the files (all panels, with a legend) and the page (panel by panel, with a
legend of its own). Each mean has an id, `mark-PANEL-ARM-NUMBER`, by which the page's script finds
it; `marks` returns the numbers that belong to the ids.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from qkv.insight.render.figures.figure_style import COLOURS, PALE, TILTED, canvas, hide_frame
from qkv.lab.experiment import Panel
from qkv.lab.lab_results import Results
from qkv.lab.paired_intervals import Interval, number_text

WIDE, HIGH = 6.6, 4.6
"""Inches of a panel."""
MARKERS = "osD^vPX*<>"
THIN: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.45, "zorder": 2}
"""The style of a single seed."""
MANY = 40
"""Units above which they are not drawn one by one, and points of a line that have a mark."""
FEW_TICKS = 10
"""Values of x that are ticks of their own."""
LINE = 66
"""Letters of tick labels that fit below a panel."""
ON_DARK, ON_LIGHT = "#FEFEFE", "#1B1B1B"
"""Colours of text in a cell, which stay as they are in the dark theme of the page."""


class Mark(NamedTuple):
    """A mean of the figure, with the id of its element."""

    gid: str
    arm: str
    x: Any
    interval: Interval
    values: list[float]


def draw_results(results: Results) -> Figure:
    """All panels, two beside each other, above one legend."""
    panels = results.experiment.panels
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = canvas(WIDE * columns + 0.8 * (columns == 1), HIGH * rows + 0.4, hspace=0.06)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for number, axes in enumerate(grid):
        if number < len(panels):
            draw_panel(axes, results, number)
        else:
            axes.set_axis_off()

    arms = legend_arms(results)
    if arms:
        handles = [legend_handle(results, arm) for arm in arms]
        columns = max(1, min(len(arms), int(13 * columns / (4 + max(map(len, arms)) / 6))))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)

    return figure


def draw_one(results: Results, number: int) -> Figure:
    """One panel alone, without a legend."""
    figure = canvas(WIDE, HIGH)
    draw_panel(figure.subplots(), results, number)
    return figure


def legend_arms(results: Results) -> list[str]:
    """The arms that the legend has to explain: where panels name them by colour alone."""
    arms: dict[str, None] = {}
    for panel in results.experiment.panels:
        if panel.draw is None and not names_arms(panel, results):
            arms.update(dict.fromkeys(panel_arms(panel, results)))

    return [arm for arm in results.experiment.arms if arm in arms]


def names_arms(panel: Panel, results: Results) -> bool:
    """Whether the arms are the ticks of an axis."""
    return panel.kind == "heat" or results.xs(panel.measure) == [None]


def panel_arms(panel: Panel, results: Results) -> list[str]:
    """The arms that a panel shows."""
    return list(panel.arms or results.arms(panel.measure))


def colour_of(results: Results, arm: str) -> str:
    """The same colour in all panels."""
    return COLOURS[results.experiment.arms.index(arm) % len(COLOURS)]


def marker_of(results: Results, arm: str) -> str:
    return MARKERS[results.experiment.arms.index(arm) % len(MARKERS)]


def line_of(results: Results, arm: str) -> Literal["-", "--"]:
    """A solid line; a dashed one where colours are used a second time."""
    return "-" if results.experiment.arms.index(arm) < len(COLOURS) else "--"


def legend_handle(results: Results, arm: str) -> Line2D:
    colour = colour_of(results, arm)
    marker = marker_of(results, arm)
    label = textwrap.fill(arm, 44)
    line = Line2D([], [], color=colour, marker=marker, linewidth=2, markersize=5, label=label)
    line.set_linestyle(line_of(results, arm))
    return line


# A panel


def draw_panel(axes: Axes, results: Results, number: int) -> None:
    """One part of the figure, with its axes and levels."""
    panel = results.experiment.panels[number]
    title, y_label = panel.title, panel.y
    if panel.kind == "heat" and panel.draw is None:
        # The rows are arms, so the title says what the colours are
        title = ": ".join(filter(None, [panel.title, panel.y]))
        y_label = ""

    axes.set_title(textwrap.fill(title, 56), loc="left", fontsize=12, pad=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(textwrap.fill(y_label, 44))
    if panel.draw is not None:
        panel.draw(axes, results)
        finish_own(axes, panel)
        return

    found = marks(results, number)
    if panel.kind == "heat":
        draw_heat(axes, panel, results, found)
        return

    if panel.kind == "lines" and results.xs(panel.measure) != [None]:
        draw_lines(axes, panel, results, found)
    else:
        draw_dots(axes, panel, results, found)

    if "y" in panel.log:
        axes.set_yscale("log")
        limit_log(axes, panel, results)

    plain_axis(axes.yaxis)
    for name, level in (panel.levels or {}).items():
        draw_level(axes, name, level)


def finish_own(axes: Axes, panel: Panel) -> None:
    """The scales, levels and legend of a panel that draws itself."""
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":  # by the panel, or by its own drawing
            plain_axis(axis)

    for name, level in (panel.levels or {}).items():
        draw_level(axes, name, level)

    if axes.get_legend() is None and axes.get_legend_handles_labels()[0]:
        axes.legend()


def marks(results: Results, number: int) -> list[Mark]:
    """The means of a panel, arm by arm."""
    panel = results.experiment.panels[number]
    if panel.draw is not None:
        return []

    found = []
    for arm in panel_arms(panel, results):
        xs = results.xs(panel.measure, arm)
        series = results.experiment.arms.index(arm)
        for place, x in enumerate(xs):
            gid = f"mark-{number}-{series}-{place}"
            values = results.values(arm, panel.measure, x)
            found.append(Mark(gid, arm, x, results.interval(arm, panel.measure, x), values))

    return found


def draw_level(axes: Axes, name: str, level: float) -> None:
    """A horizontal line whose name stands to the right of the panel."""
    axes.axhline(level, color=PALE, linestyle=":", linewidth=1.3, zorder=1)
    axes.annotate(
        textwrap.fill(name, 16),
        (1, level),
        xytext=(4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=PALE,
        annotation_clip=False,
    )


# Lines


def draw_lines(axes: Axes, panel: Panel, results: Results, found: list[Mark]) -> None:
    """One line for each arm over x."""
    xs = results.xs(panel.measure)
    places = x_places(xs)
    for arm in panel_arms(panel, results):
        series = [mark for mark in found if mark.arm == arm]
        draw_series(axes, results, panel.measure, series, places)

    if not all(isinstance(x, int | float) for x in xs):
        name_ticks(axes, [str(x) for x in xs])
        return

    if "x" in panel.log:
        axes.set_xscale("log")

    ticks_at(axes.xaxis, xs, logarithmic="x" in panel.log)


def x_places(xs: Sequence[Any]) -> dict[Any, float]:
    """Where each x stands: at its value, or one after the other if one of them is a word."""
    if all(isinstance(x, int | float) for x in xs):
        return {x: float(x) for x in xs}

    return {x: float(place) for place, x in enumerate(xs)}


def draw_series(
    axes: Axes, results: Results, measure: str, series: list[Mark], places: dict[Any, float]
) -> None:
    """The seeds, the mean and the interval of one arm."""
    arm = series[0].arm
    colour = colour_of(results, arm)
    series = sorted(series, key=lambda mark: places[mark.x])
    at = [places[mark.x] for mark in series]
    if len(results.units) <= MANY:
        for unit in results.units:
            ys = [results.index[arm, measure, mark.x].get(unit, math.nan) for mark in series]
            axes.plot(at, ys, color=colour, **THIN)

    lows = [mark.interval.low for mark in series]
    highs = [mark.interval.high for mark in series]
    if all(map(math.isfinite, [*lows, *highs])):
        axes.fill_between(at, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=1)

    means = [mark.interval.mean for mark in series]
    axes.plot(at, means, line_of(results, arm), color=colour, linewidth=2.2, zorder=4)
    step = math.ceil(len(series) / MANY)
    for place in range(0, len(series), step):
        draw_mean(axes, results, series[place], at[place])


def draw_mean(axes: Axes, results: Results, mark: Mark, at: float, size: float = 5.5) -> None:
    """The point of a mean, which the page can find by its id."""
    colour = colour_of(results, mark.arm)
    marker = marker_of(results, mark.arm)
    axes.plot(
        [at], [mark.interval.mean], marker, color=colour, markersize=size, zorder=5, gid=mark.gid
    )


# Dots


def draw_dots(axes: Axes, panel: Panel, results: Results, found: list[Mark]) -> None:
    """A column for each arm; or a group for each category, with the arms beside each other."""
    arms = panel_arms(panel, results)
    xs = results.xs(panel.measure)
    alone = xs == [None]
    places: dict[str, float] = {}
    for mark in found:
        order = arms.index(mark.arm)
        place = float(order)
        if not alone:
            place = xs.index(mark.x) + 0.72 * ((order + 0.5) / len(arms) - 0.5)

        places[mark.gid] = place

    if alone:
        join_units(axes, panel, results, arms)

    for mark in found:
        draw_column(axes, results, mark, places[mark.gid])

    labels = arms if alone else [str(x) for x in xs]
    name_ticks(axes, labels)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.xaxis.grid(visible=False)


def join_units(axes: Axes, panel: Panel, results: Results, arms: list[str]) -> None:
    """A thin line for each unit from arm to arm: they are paired."""
    if len(results.units) > MANY:
        return

    for unit in results.units:
        ys = [results.index[arm, panel.measure, None].get(unit, math.nan) for arm in arms]
        axes.plot(range(len(arms)), ys, color=PALE, **{**THIN, "alpha": 0.3})


def draw_column(axes: Axes, results: Results, mark: Mark, place: float) -> None:
    """The units of a mean as small dots, with the mean and its interval beside them."""
    colour = colour_of(results, mark.arm)
    axes.plot(
        [place] * len(mark.values), mark.values, "o", color=colour, alpha=0.35, markersize=3.5
    )
    _, low, high, _ = mark.interval
    if math.isfinite(low) and math.isfinite(high):
        axes.plot([place, place], [low, high], color=colour, linewidth=2.2, zorder=4)

    draw_mean(axes, results, mark, place, 7)


# Heat maps


def draw_heat(axes: Axes, panel: Panel, results: Results, found: list[Mark]) -> None:
    """A cell for each arm (row) and x (column), with its mean."""
    arms = panel_arms(panel, results)
    xs = results.xs(panel.measure)
    means = [mark.interval.mean for mark in found]
    low, high = min(means), max(means)
    colours = colormaps["YlGnBu"]
    if low < 0 < high:
        colours = colormaps["RdBu"]
        high = max(-low, high)
        low = -high

    font = 10 if len(xs) <= 8 else 8
    for mark in found:
        column, row = xs.index(mark.x), arms.index(mark.arm)
        shade = colours((mark.interval.mean - low) / ((high - low) or 1))
        light = 0.3 * shade[0] + 0.6 * shade[1] + 0.1 * shade[2]
        cell = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=shade, gid=mark.gid)
        axes.add_patch(cell)
        if len(xs) <= 14:
            text = number_text(mark.interval.mean, 3 if len(xs) <= 8 else 2)
            colour = ON_DARK if light < 0.55 else ON_LIGHT
            axes.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)

    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    name_ticks(axes, ["" if x is None else str(x) for x in xs])
    axes.set_yticks(range(len(arms)), [textwrap.fill(arm, 20) for arm in arms])
    hide_frame(axes)


# Axes


def name_ticks(axes: Axes, labels: Sequence[str]) -> None:
    """Names at 0, 1, 2 ... of the x axis; they are tilted if they would touch each other."""
    width = max(9, LINE // max(1, len(labels)))
    words = [word for label in labels for word in label.split()]
    tilted = len(labels) * 9 > LINE or any(len(word) > width for word in words)
    if tilted:
        width = 18

    axes.set_xticks(range(len(labels)), [textwrap.fill(label, width) for label in labels])
    axes.tick_params(axis="x", labelsize=9 if tilted else 10)
    if tilted and sum(map(len, labels)) > LINE:
        for text in axes.get_xticklabels():
            text.set(**TILTED)


def ticks_at(axis: Axis, values: Sequence[float], *, logarithmic: bool) -> None:
    """Ticks at the values that were measured, if they are few and their labels have room."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(float(value))))
    if len(set(values)) > FEW_TICKS or (logarithmic and min(values) <= 0):
        return

    scale = math.log if logarithmic else float
    ordered = sorted(set(values), reverse=True)
    spread = (scale(ordered[0]) - scale(ordered[-1])) or 1.0
    kept: list[float] = []
    for value in ordered:
        room = 0.022 * (1 + len(tick_text(value)))
        if not kept or (scale(kept[-1]) - scale(value)) / spread >= room:
            kept.append(value)

    axis.set_major_locator(FixedLocator(kept))
    axis.set_minor_locator(NullLocator())


def plain_axis(axis: Axis) -> None:
    """Numbers that are written out, without a common factor; powers of ten with thousands."""
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        if high / max(low, 1e-300) < 300:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))

        axis.set_minor_formatter(NullFormatter())

    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(float(value))))


def tick_text(value: float) -> str:
    """20k for 20,000, and 0.05."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"

    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            unit = 1e3 if letter == "k" else factor
            return f"{value / unit:.4g}{letter}"

    return f"{value:.6g}"


def limit_log(axes: Axes, panel: Panel, results: Results) -> None:
    """End a logarithmic axis at what was measured: an interval may reach down to 0."""
    values = list((panel.levels or {}).values())
    for arm in panel_arms(panel, results):
        for x in results.xs(panel.measure, arm):
            values += results.values(arm, panel.measure, x)
            values.append(results.interval(arm, panel.measure, x).high)

    shown = [value for value in values if 0 < value < math.inf]
    if shown:
        margin = max(1.05, (max(shown) / min(shown)) ** 0.06)
        axes.set_ylim(min(shown) / margin, max(shown) * margin)
