"""Prompting against fine-tuning: accuracy over the number of examples, as a table and as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qkv.insight.render.figures.figure_style import COLOURS, PALE, ROUND, check_ending, head, save
from qkv.tables import Table

Way = Literal["prompted", "fine-tuned"]
LOOKS: dict[Way, dict[str, Any]] = {
    "prompted": {"color": COLOURS[0], "marker": "o"},
    "fine-tuned": {"color": COLOURS[1], "marker": "s"},
}
NOWHERE = -0.6  # where 0 examples are drawn: on a logarithmic scale 1 is at 0, and 0 has no place
APART = 0.022  # how far the two ways stand from their number, of the whole width
CLOSE = (
    0.055  # numbers of examples nearer than this, of the whole width, have one tick between them
)


class Compared(NamedTuple):
    """One way with one number of examples."""

    way: Way
    examples: int
    accuracies: tuple[float, ...]
    """Of each seed."""
    low: float
    high: float
    """Between these the mean lies 95 times in 100, the test being only a sample."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; of one seed there is none."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def comparison_table(points: Sequence[Compared], chance: float | None = None) -> Table:
    """A row for each way and number of examples."""
    made = Table(header_style="bold", caption_justify="left", caption="[ ]: 95% intervals")
    if chance is not None:
        made.caption = f"[ ]: 95% intervals; guessing is right in {chance:.1%}"

    made.add_column("way")

    for name in ("examples", "accuracy, %", "seeds", "spread"):
        made.add_column(name, justify="right")

    for way in LOOKS:
        for point in sorted(
            (each for each in points if each.way == way), key=lambda each: each.examples
        ):
            ends = f"[{100 * point.low:.1f}, {100 * point.high:.1f}]"
            spread = "" if point.spread is None else f"± {100 * point.spread:.1f}"
            seeds = str(len(point.accuracies))
            # Brackets would be markup to a table.
            made.add_row(
                way, f"{point.examples:,}", f"{100 * point.mean:.1f} \\{ends}", seeds, spread
            )

        made.add_section()

    return made


def draw_comparison(
    points: Sequence[Compared], path: Path, title: str, below: str, chance: float | None
) -> Path:
    """A .png, .svg or .pdf file: examples to the right, accuracy upwards, both ways with their
    intervals.
    """
    check_ending(path, "path")
    if not points:
        raise ValueError("points: expected one or more to draw")

    return save(lambda: draw(points, title, below, chance), path)


def draw(points: Sequence[Compared], title: str, below: str, chance: float | None) -> Figure:
    figure = Figure(figsize=(9, 5.6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    axes = figure.add_subplot()
    numbers = sorted({point.examples for point in points})
    left, right = place(numbers[0]), place(numbers[-1])
    width, both = max(0.5, right - left), len({point.way for point in points}) == 2

    for way, look in LOOKS.items():
        own = sorted((each for each in points if each.way == way), key=lambda each: each.examples)
        shift = APART * width * both * (-1 if way == "prompted" else 1) / 2
        trace(axes, own, [place(each.examples) + shift for each in own], look, way)

    if chance is not None:
        axes.axhline(100 * chance, color=PALE, linewidth=1, linestyle="--", zorder=1)
        axes.annotate(
            "guessing", (0.99, 100 * chance), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", fontsize=9, color=PALE,
        )  # fmt: skip

    if len(numbers) > 1 and numbers[0] == 0:  # the scale begins to the right of this
        axes.axvline(NOWHERE / 2, color=PALE, linewidth=1, linestyle=":", zorder=1)

    shown = spaced(numbers, CLOSE * width)
    axes.set_xticks([place(each) for each in shown], [f"{each:,}" for each in shown])
    axes.set_xlim(left - 0.05 * width, right + 0.05 * width)
    axes.set_xlabel("labelled examples: before the question, or trained on")
    axes.set_ylabel("accuracy, %")
    axes.margins(y=0.1)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="best")
    head(axes, title, below)

    return figure


def trace(
    axes: Axes, own: Sequence[Compared], x: Sequence[float], look: dict[str, Any], way: Way
) -> None:
    """The means joined by a line, the interval of each upright, and each seed as a small dot."""
    for at, point in zip(x, own, strict=True):
        ends = [100 * point.low, 100 * point.high]
        axes.plot(
            [at, at], ends, color=look["color"], linewidth=1.8, alpha=0.6, solid_capstyle="round"
        )
        if point.spread is not None:
            each = [100 * accuracy for accuracy in point.accuracies]
            axes.plot(
                [at] * len(each), each, ".", color=look["color"], markersize=5, alpha=0.5, zorder=2
            )

    if own:
        y = [100 * point.mean for point in own]
        axes.plot(
            x, y, linewidth=1.3, markersize=8, markeredgecolor="white", zorder=3, label=way, **look
        )


def place(examples: int) -> float:
    """To the right as the logarithm; 0 stands apart, left of 1."""
    return math.log10(examples) if examples else NOWHERE


def spaced(numbers: Sequence[int], least: float) -> list[int]:
    """Those that have room for their name, the last one always."""
    kept: list[int] = []
    for number in reversed(numbers):
        if not kept or place(kept[-1]) - place(number) >= least:
            kept.append(number)

    return kept[::-1]
