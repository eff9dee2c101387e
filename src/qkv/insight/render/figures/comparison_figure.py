"""Prompting compared with fine-tuning by the number of labelled examples: a figure and a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.insight.render.figures.figure_style import (
    COLOURS,
    PALE,
    canvas,
    draw_baseline,
    draw_interval,
    head,
    plain_ticks,
    save,
)
from qkv.tables import Table

Way = Literal["prompted", "fine-tuned"]
STYLES: dict[Way, dict[str, Any]] = {
    "prompted": {"color": COLOURS[0], "marker": "o"},
    "fine-tuned": {"color": COLOURS[1], "marker": "s"},
}
ZERO_X = -0.6  # the x coordinate of 0 examples: on a logarithmic axis 1 is at 0
APART = 0.022  # distance between the two methods at one number, as a fraction of the width
CLOSE = 0.055  # ticks that are nearer than this fraction of the width are merged


class Compared(NamedTuple):
    """The accuracy of one method (prompted, fine-tuned) with one number of examples."""

    way: Way
    examples: int
    accuracies: tuple[float, ...]
    """Of each seed."""
    low: float
    high: float
    """The ends of the 95% interval of the mean over samples of the test rows."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None with one seed."""
        if len(self.accuracies) == 1:
            return None

        return statistics.stdev(self.accuracies)


def points_of(points: Sequence[Compared], way: Way) -> list[Compared]:
    """The points of one method by number of examples."""
    matches = [point for point in points if point.way == way]
    return sorted(matches, key=lambda point: point.examples)


def comparison_table(points: Sequence[Compared], random_baseline: float | None = None) -> Table:
    """A row for each method and number of examples."""
    table = Table(header_style="bold", caption_justify="left", caption="[ ]: 95% intervals")
    if random_baseline is not None:
        table.caption = f"[ ]: 95% intervals; random guessing: {random_baseline:.1%}"

    table.add_column("way")
    for name in ("examples", "accuracy, %", "seeds", "spread"):
        table.add_column(name, justify="right")

    for way in STYLES:
        for point in points_of(points, way):
            table.add_row(way, *cells(point))

        table.add_section()

    return table


def cells(point: Compared) -> list[str]:
    """Examples, accuracy with its interval, seeds and spread as text."""
    # An unescaped bracket would be markup in a table.
    interval = f"\\[{100 * point.low:.1f}, {100 * point.high:.1f}]"
    spread = ""
    if point.spread is not None:
        spread = f"± {100 * point.spread:.1f}"

    accuracy = f"{100 * point.mean:.1f} {interval}"
    return [f"{point.examples:,}", accuracy, str(len(point.accuracies)), spread]


def draw_comparison(
    points: Sequence[Compared],
    path: Path,
    title: str,
    below: str,
    random_baseline: float | None,
) -> Path:
    """Draw accuracy by number of examples to a .png, .svg or .pdf file."""
    if not points:
        raise ValueError("points: expected one or more to draw")

    return save(lambda: draw(points, title, below, random_baseline), path, "path")


def draw(
    points: Sequence[Compared], title: str, below: str, random_baseline: float | None
) -> Figure:
    """Examples on the x axis, accuracy on the y axis, both methods with their intervals."""
    figure = canvas(9, 5.6)
    axes = figure.add_subplot()
    numbers = sorted({point.examples for point in points})
    width = max(0.5, x_of(numbers[-1]) - x_of(numbers[0]))

    # With both methods at one number, prompted is drawn slightly left and fine-tuned right.
    both = len({point.way for point in points}) == 2
    shift = both * APART * width / 2
    draw_way(axes, points, "prompted", -shift)
    draw_way(axes, points, "fine-tuned", shift)
    if random_baseline is not None:
        draw_baseline(axes, 100 * random_baseline, "right")

    draw_x_axis(axes, numbers, width)
    axes.set_ylabel("accuracy, %")
    axes.margins(y=0.1)
    plain_ticks(axes.yaxis, 6)
    axes.legend(loc="best")
    head(axes, title, below)

    return figure


def draw_way(axes: Axes, points: Sequence[Compared], way: Way, shift: float) -> None:
    """The means joined by a line, the intervals as vertical lines, and each seed as a small dot."""
    style = STYLES[way]
    colour = style["color"]
    x = []
    means = []
    for point in points_of(points, way):
        at = x_of(point.examples) + shift
        x.append(at)
        means.append(100 * point.mean)
        draw_interval(axes, at, 100 * point.low, 100 * point.high, colour)
        if point.spread is not None:
            seeds = [100 * accuracy for accuracy in point.accuracies]
            x_seeds = [at] * len(seeds)
            axes.plot(x_seeds, seeds, ".", color=colour, markersize=5, alpha=0.5, zorder=2)

    if x:
        line: dict[str, Any] = {"linewidth": 1.3, "markersize": 8, "markeredgecolor": "white"}
        axes.plot(x, means, zorder=3, label=way, **line, **style)


def draw_x_axis(axes: Axes, numbers: Sequence[int], width: float) -> None:
    """A logarithmic axis with a tick for each number of examples, and a line after 0."""
    if len(numbers) > 1 and numbers[0] == 0:
        axes.axvline(ZERO_X / 2, color=PALE, linewidth=1, linestyle=":", zorder=1)

    ticks = spaced(numbers, CLOSE * width)
    axes.set_xticks(list(map(x_of, ticks)), [f"{number:,}" for number in ticks])
    axes.set_xlim(x_of(numbers[0]) - 0.05 * width, x_of(numbers[-1]) + 0.05 * width)
    axes.set_xlabel("labelled examples, in the prompt or for training")
    axes.grid(axis="x", visible=False)


def x_of(examples: int) -> float:
    """The logarithm of the number; 0 stands apart, left of 1."""
    if examples == 0:
        return ZERO_X

    return math.log10(examples)


def spaced(numbers: Sequence[int], least: float) -> list[int]:
    """The numbers that have room for their tick, the last one always."""
    ticks: list[int] = []
    for number in reversed(numbers):
        if not ticks or x_of(ticks[-1]) - x_of(number) >= least:
            ticks.append(number)

    return ticks[::-1]
