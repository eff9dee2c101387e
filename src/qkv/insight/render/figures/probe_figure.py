"""Probe scores by layer: lines with confidence intervals in panels, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.text import Text

from qkv.insight.probing.probe_model import LayerScore, ProbeCondition, ProbeResult
from qkv.insight.probing.probe_tasks import Measure
from qkv.insight.render.figures.figure_style import COLOURS, PALE, ROUND, annotate, canvas, save
from qkv.tables import Table

SHORT: dict[ProbeCondition, str] = {
    "model": "model",
    "random model": "random",
    "shuffled labels": "shuffled",
}
"""Column headers that are no wider than their numbers."""
WAYS: dict[ProbeCondition, str] = {
    "model": COLOURS[0],
    "random model": COLOURS[1],
    "shuffled labels": PALE,
}
TITLES: dict[Measure, str] = {"accuracy": "accuracy, %", "distance": "mean absolute distance"}
BASELINES: dict[Measure, str] = {"accuracy": "majority class", "distance": "always the median"}
MARKERS = "osD^vPX"
TICKS = 16  # numbered layers that have a tick, at most


class Line(NamedTuple):
    """A line of a panel: scores by layer."""

    name: str
    scores: Sequence[LayerScore]
    """By layer."""
    colour: str
    dashed: bool = False


class ProbePanel(NamedTuple):
    """Lines over the same layers and the same measure."""

    title: str
    lines: Sequence[Line]
    levels: Mapping[str, float]
    """Baselines by name, drawn as dotted horizontal lines."""
    measure: Measure


def draw_probed(probed: ProbeResult, path: Path) -> Path:
    """Draw probe scores by layer to a .png, .svg or .pdf file, with a panel for each measure."""
    panels = [probed_panel(probed, measure) for measure in probed.measures]
    hidden = probed.facts.get("hidden", 0)
    probe = "linear"
    if hidden:
        probe = f"one hidden layer of {hidden:,}"

    best = probed.best
    below = (
        f"{layer_name(best.layer)}, the best on the validation split: {shown(best)}; "
        f"probe: {probe}; band: 95% interval"
    )

    return draw_panels(
        panels, path, f"{probed.model}: probing each layer for {probed.target}", below
    )


def probed_panel(probed: ProbeResult, measure: Measure) -> ProbePanel:
    """The model and its controls for one measure, with the majority-class baseline."""
    lines = []
    for way, colour in WAYS.items():
        scores = probed.of(way, measure)
        if scores:
            lines.append(Line(way, scores, colour, way != "model"))

    levels = {}
    if measure in probed.baseline:
        levels[BASELINES[measure]] = probed.baseline[measure]

    return ProbePanel("", lines, levels, measure)


def draw_panels(panels: Sequence[ProbePanel], path: Path, title: str, below: str) -> Path:
    """Draw panels side by side to a .png, .svg or .pdf file."""
    if not any(panel.lines for panel in panels):
        raise ValueError("panels: expected one line or more to draw")

    return save(lambda: draw(panels, title, below), path, "path")


def draw(panels: Sequence[ProbePanel], title: str, below: str) -> Figure:
    figure = canvas(2.6 + 6.2 * len(panels), 5.6)
    measures = {panel.measure for panel in panels}
    row = figure.subplots(1, len(panels), squeeze=False, sharey=len(measures) == 1)[0]
    for axes, panel in zip(row, panels, strict=True):
        draw_panel(axes, panel)

    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=6, fontsize=10)
    figure.suptitle(f"{title}\n\n", fontsize=16, fontweight="bold", x=0.01, ha="left")
    figure.text(0.012, 0.895, below, fontsize=11, color=PALE)

    return figure


def draw_panel(axes: Axes, panel: ProbePanel) -> None:
    """Layers on the x axis, the score on the y axis."""
    factor = 100 if panel.measure == "accuracy" else 1
    # The layers of all lines, in the order in which they first occur
    layers = list(dict.fromkeys(score.layer for line in panel.lines for score in line.scores))
    for number, line in enumerate(panel.lines):
        draw_line(axes, line, layers, factor, MARKERS[number % len(MARKERS)])

    for name, level in panel.levels.items():
        draw_level(axes, name, factor * level)

    tick_layers(axes, layers)
    axes.set_xlabel("layer")
    axes.set_ylabel(TITLES[panel.measure])
    axes.set_title(panel.title, fontsize=12, loc="left")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=ROUND))
    axes.grid(axis="x", visible=False)


def draw_line(axes: Axes, line: Line, layers: list[str], factor: float, marker: str) -> None:
    """A line over the layers, with its interval as a band."""
    values = []
    for score in line.scores:
        low = score.low
        high = score.high
        if low is None or high is None:
            low = high = score.mean

        at = layers.index(score.layer)
        values.append((at, factor * score.mean, factor * low, factor * high))

    x, means, lows, highs = np.array(values).T
    dashes = "--" if line.dashed else "-"
    marks: dict[str, Any] = {"marker": marker, "markersize": 5, "markeredgecolor": "white"}
    axes.fill_between(x, lows, highs, color=line.colour, alpha=0.15, linewidth=0)
    axes.plot(x, means, dashes, color=line.colour, label=line.name, linewidth=1.8, **marks)


def draw_level(axes: Axes, name: str, level: float) -> None:
    """A dotted line across, named at its right end outside the panel, where no line runs."""
    axes.axhline(level, color=PALE, linewidth=1, linestyle=":", zorder=1)
    style: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    annotate(axes, name.replace(" ", "\n", 1), (1.01, level), **style)


def tick_layers(axes: Axes, layers: Sequence[str]) -> None:
    """Ticks for the embedding, the norm and as many numbered layers as there is room for."""
    blocks = [index for index, layer in enumerate(layers) if layer.isdigit()]
    shown_blocks = blocks[:: max(1, -(-len(blocks) // TICKS))]
    ticks = []
    for index, layer in enumerate(layers):
        if index in shown_blocks or not layer.isdigit():
            ticks.append(index)

    axes.set_xticks(ticks, [layers[index] for index in ticks])

    # Names are aligned outwards, away from the numbers between them.
    for tick in axes.get_xticklabels():
        if tick.get_text() == "norm":
            tick.set_horizontalalignment("left")
        elif not tick.get_text().isdigit():
            tick.set_horizontalalignment("right")


# In the terminal


def probe_table(probed: ProbeResult) -> Table:
    """A row for each layer: the score and its interval, and the controls."""
    table = Table(header_style="bold", caption_justify="left", caption=Text(caption(probed)))
    table.add_column("layer", no_wrap=True)

    columns = []
    for measure in probed.measures:
        for way in WAYS:
            scores = probed.of(way, measure)
            if scores:
                table.add_column(f"{SHORT[way]}\n{measure}", justify="right")
                columns.append({score.layer: shown(score) for score in scores})

    for layer in probed.layers:
        cells = [Text(column.get(layer, "")) for column in columns]
        style = "bold" if layer == probed.best.layer else ""
        table.add_row(layer, *cells, style=style)

    return table


def caption(probed: ProbeResult) -> str:
    """What is bold, what the brackets are, the majority-class baseline and the controls."""
    baselines = []
    for measure, value in probed.baseline.items():
        baselines.append(f"{number(value, measure)} ({TITLES[measure]})")

    best = layer_name(probed.best.layer)
    text = (
        f"bold: {best}, the best on the validation split; all scores are of the test split\n"
        f"[ ]: 95% intervals over the test texts; majority-class baseline: {', '.join(baselines)}"
    )
    controls = [way for way in WAYS if way != "model" and probed.of(way)]
    if controls:
        text += f"\ncontrols: {', '.join(controls)}"

    return text


def shown(score: LayerScore) -> str:
    """A score with its interval, if it has one."""
    mean = number(score.mean, score.measure)
    if score.low is None or score.high is None:
        return mean

    return f"{mean} [{number(score.low, score.measure)}, {number(score.high, score.measure)}]"


def number(value: float, measure: Measure) -> str:
    if measure == "accuracy":
        return f"{100 * value:.1f}"

    return f"{value:.2f}"


def layer_name(layer: str) -> str:
    if layer.isdigit():
        return f"layer {layer}"

    return layer
