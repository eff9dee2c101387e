"""The positional encoding of a model, in the terminal and as a figure."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from qkv.insight.inspect.position_encoding import PositionTable
from qkv.insight.render.figures import figure_style
from qkv.insight.render.terminal_cells import HeatMap

LEGEND_HEADS = 16
"""Up to this number of heads the figure has a legend."""


def show(encoding: PositionTable, console: Console) -> None:
    """Print the similarity of two positions at distances 0, 1, 2, 4 ...; a column for each head."""
    lines, positions = encoding.by_distance.shape
    distances = [0]
    distance = 1
    while distance < positions:
        distances.append(distance)
        distance *= 2

    columns = [""]
    if lines > 1:
        columns = [f"head {head}" for head in range(lines)]

    values = encoding.by_distance[:, distances].T  # (distances, 1 or H)
    low = float(values.min())
    high = float(values.max())
    shades = (values - low) / ((high - low) or 1.0)

    title = f"{encoding.kind} positions: {encoding.likeness}, by distance"
    note = f"Over {len(encoding.table)} positions; --out positions.png draws all of it."
    console.print(Text(title, style="bold"))
    console.print(Text(note, style="dim"))
    console.print(HeatMap(values, list(map(str, distances)), columns, shades=shades))


def draw(encoding: PositionTable, name: str) -> Figure:
    """Draw the table as a heat map, and beside it the similarity by distance."""
    figure = figure_style.canvas(12, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    draw_table(left, encoding, name)
    draw_similarity(right, encoding)

    return figure


def draw_table(axes: Axes, encoding: PositionTable, name: str) -> None:
    """A row for each position or distance; colours end at the 99.5% quantile, to spare outliers."""
    largest = float(encoding.table.abs().flatten().double().quantile(0.995)) or 1.0
    colours = "Blues_r"
    high = 0.0
    if bool((encoding.table > 0).any()):
        colours = "RdBu"
        high = largest

    image = axes.imshow(
        encoding.table.numpy(),
        aspect="auto",
        cmap=colours,
        vmin=-largest,
        vmax=high,
        interpolation="nearest",
    )
    row = "distance" if encoding.kind in ("alibi", "relative") else "position"
    axes.grid(visible=False)
    axes.set_xlabel(encoding.columns)
    axes.set_ylabel(row)
    figure_style.colour_bar(axes, image, shrink=0.8)
    figure_style.head(
        axes,
        f"{encoding.kind} positions",
        f"{name}: a row for each {row}, {len(encoding.table)} of them",
    )


def draw_similarity(axes: Axes, encoding: PositionTable) -> None:
    """A line for the model, or one for each head."""
    lines = len(encoding.by_distance)
    for number, line in enumerate(encoding.by_distance):
        colour = figure_style.COLOURS[number % len(figure_style.COLOURS)]
        label = f"head {number}" if lines > 1 else None
        axes.plot(line.numpy(), color=colour, linewidth=2, label=label)

    if 1 < lines <= LEGEND_HEADS:
        axes.legend(fontsize=9, ncols=2)

    axes.set_xlabel("distance between two positions")
    axes.set_ylabel(encoding.likeness)
    figure_style.head(axes, "Similarity of two positions", "by the distance between them")
