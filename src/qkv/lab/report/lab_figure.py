"""The figure of an experiment: each seed thin, the mean with its 95% interval."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.insight.render.figures.figure_style import COLOURS, canvas
from qkv.lab.experiment import Panel
from qkv.lab.lab_results import Results


def draw_results(results: Results) -> Figure:
    """All panels side by side."""
    panels = results.experiment.panels
    figure = canvas(6.4 * len(panels), 4.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel.draw is not None:
            panel.draw(axes, results)
        elif panel.kind == "lines" and panel.x:
            draw_lines(axes, panel, results)
        else:
            draw_dots(axes, panel, results)

        axes.set_title(panel.title, loc="left")
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        if "x" in panel.log:
            axes.set_xscale("log")
        if "y" in panel.log:
            axes.set_yscale("log")

        for name, level in (panel.levels or {}).items():
            axes.axhline(level, color="#777777", linestyle=":", label=name)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()

    return figure


def draw_lines(axes: Axes, panel: Panel, results: Results) -> None:
    """One line for each arm over x."""
    for number, arm in enumerate(panel.arms or results.arms(panel.measure)):
        colour = COLOURS[number % len(COLOURS)]
        xs = results.xs(panel.measure, arm)
        for unit in results.units:
            ys = [results.index[arm, panel.measure, x][unit] for x in xs]
            axes.plot(xs, ys, color=colour, linewidth=0.6, alpha=0.4)

        intervals = [results.interval(arm, panel.measure, x) for x in xs]
        means = [interval.mean for interval in intervals]
        axes.plot(xs, means, color=colour, linewidth=2, marker="o", label=arm)
        if all(math.isfinite(interval.low) for interval in intervals):
            lows = [interval.low for interval in intervals]
            highs = [interval.high for interval in intervals]
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.15)


def draw_dots(axes: Axes, panel: Panel, results: Results) -> None:
    """A column of dots for each arm, or for each category with an arm in a colour."""
    arms = panel.arms or results.arms(panel.measure)
    ticks: list[str] = []
    for x in results.xs(panel.measure):
        for number, arm in enumerate(arms):
            if (arm, panel.measure, x) not in results.index:
                continue

            place = len(ticks)
            ticks.append(arm if x is None else f"{x}\n{arm}")
            values = results.values(arm, panel.measure, x)
            colour = COLOURS[number % len(COLOURS)]
            axes.plot([place] * len(values), values, "o", color=colour, alpha=0.4, markersize=4)
            interval = results.interval(arm, panel.measure, x)
            half = interval.high - interval.mean
            error = half if math.isfinite(half) else 0.0
            axes.errorbar([place], [interval.mean], yerr=[error], color=colour, marker="s")

    axes.set_xticks(range(len(ticks)), ticks, rotation=30, ha="right")
