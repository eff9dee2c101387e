"""Boxes, arrows and texts of a diagram; coordinates are inches from the lower left corner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from qkv.insight.render.figures.figure_style import INK, PALE

Kind = Literal[
    "data", "embedding", "attention", "norm", "feed_forward", "recurrent", "output", "operation"
]
Point = tuple[float, float]

# Pale tints of the palette of all figures.
FILLS: dict[Kind, str] = {
    "data": "#FFFFFF",
    "embedding": "#F9D9E8",
    "attention": "#FBDDC2",
    "norm": "#F6F0BF",
    "feed_forward": "#CDE6F5",
    "recurrent": "#CDE6F5",
    "output": "#CBE8DD",
    "operation": "#ECECEC",
}
EDGE = "#555555"
LINE = 1.2


class Box(NamedTuple):
    """A drawn box: its centre and size."""

    x: float
    y: float
    wide: float
    high: float

    @property
    def top(self) -> Point:
        return self.x, self.y + self.high / 2

    @property
    def bottom(self) -> Point:
        return self.x, self.y - self.high / 2

    @property
    def left(self) -> Point:
        return self.x - self.wide / 2, self.y

    @property
    def right(self) -> Point:
        return self.x + self.wide / 2, self.y


class Diagram:
    """An empty sheet of this size in inches, with a title and a paler line below it.

    Example:
        >>> sheet = Diagram(3, 2, "Attention", "")
        >>> first = sheet.box(1, 0.5, "query")
        >>> second = sheet.box(1, 1.2, "softmax", kind="operation")
        >>> sheet.arrow(first.top, second.bottom)
    """

    def __init__(self, wide: float, high: float, title: str, below: str) -> None:
        self.figure = Figure(figsize=(wide, high))
        self.axes: Any = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, wide), ylim=(0, high))
        self.axes.set_axis_off()
        self.text(0.25, high - 0.32, title, size=16, weight="bold", ha="left")
        self.text(0.25, high - 0.62, below, size=10, color=PALE, ha="left")

    def text(self, x: float, y: float, text: str, size: float = 9, **style: Any) -> None:
        """Write a text, by default centred at a point."""
        style = {"ha": "center", "va": "center", "color": INK, **style}
        self.axes.text(x, y, text, fontsize=size, zorder=4, **style)

    def box(
        self,
        x: float,
        y: float,
        title: str,
        detail: str = "",
        *,
        kind: Kind = "data",
        wide: float = 1.4,
        high: float = 0.42,
        copies: int = 1,
        size: float = 10,
    ) -> Box:
        """A box with a title and a smaller detail below it; `copies` show as a stack of boxes."""
        for behind in reversed(range(copies)):
            shift = 0.07 * behind
            corner = (x - wide / 2 + shift, y - high / 2 + shift)
            style: Any = {"boxstyle": "round,pad=0,rounding_size=0.07", "linewidth": LINE}
            patch = FancyBboxPatch(
                corner, wide, high, facecolor=FILLS[kind], edgecolor=EDGE, zorder=3, **style
            )
            self.axes.add_patch(patch)

        lift = 0.0
        if detail:
            lift = 0.09
            self.text(x, y - 0.11, detail, size=size - 2.5, color=EDGE)

        self.text(x, y + lift, title, size=size)
        return Box(x, y, wide, high)

    def frame(
        self, left: float, bottom: float, end: float, top: float, label: str, right: bool = False
    ) -> None:
        """A dashed frame around a part that is repeated, with its label on the left or right."""
        patch = FancyBboxPatch(
            (left, bottom),
            end - left,
            top - bottom,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="#FAFAFA",
            edgecolor=PALE,
            linewidth=LINE,
            linestyle=(0, (4, 2)),
            zorder=1,
        )
        self.axes.add_patch(patch)
        x = end + 0.1 if right else left - 0.1
        align = "left" if right else "right"
        self.text(x, (bottom + top) / 2, label, size=12, weight="bold", ha=align)

    def plus(self, x: float, y: float) -> Box:
        """The sum of a residual connection."""
        self.axes.add_patch(
            Circle((x, y), 0.11, facecolor="white", edgecolor=EDGE, linewidth=LINE, zorder=3)
        )
        self.text(x, y, "+", size=11)
        return Box(x, y, 0.22, 0.22)

    def arrow(self, start: Point, end: Point, **style: Any) -> None:
        """A straight arrow."""
        style = {"color": EDGE, "linewidth": LINE, **style}
        arrow = FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0, zorder=2, **style
        )
        self.axes.add_patch(arrow)

    def path(self, points: Sequence[Point], **style: Any) -> None:
        """A line through these points that ends in an arrow."""
        line = {"color": EDGE, "linewidth": LINE, **style}
        xs = [point[0] for point in points[:-1]]
        ys = [point[1] for point in points[:-1]]
        self.axes.plot(xs, ys, zorder=2, solid_capstyle="projecting", **line)
        self.arrow(points[-2], points[-1], **style)

    def line(self, start: Point, end: Point, **style: Any) -> None:
        """A straight line without an arrowhead."""
        line = {"color": EDGE, "linewidth": LINE, "zorder": 1, **style}
        self.axes.plot([start[0], end[0]], [start[1], end[1]], **line)
