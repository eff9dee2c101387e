"""What probes found, layer by layer: lines with their intervals, in one panel or several side by
side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from rich.text import Text

from qkv.insight.probing.probe_model import Measure, Probed, Scored, Way
from qkv.insight.render.figures.figure_style import COLOURS, PALE, ROUND, check_ending, save
from qkv.tables import Table

SHORT: dict[Way, str] = {"model": "model", "random model": "random", "shuffled labels": "shuffled"}
"""Above the columns of a table: no word is wider than its numbers."""
WAYS: dict[Way, str] = {"model": COLOURS[0], "random model": COLOURS[1], "shuffled labels": PALE}
MARKERS = "osD^vPX"


class Line(NamedTuple):
    name: str
    scores: Sequence[Scored]
    """By layer."""
    colour: str
    dashed: bool = False


class Panel(NamedTuple):
    title: str
    lines: Sequence[Line]
    levels: Mapping[str, float]
    """Dotted lines across, by name: what one gets who knows nothing."""
    measure: Measure


def draw_probed(found: Probed, path: Path) -> Path:
    """A .png, .svg or .pdf file: layers to the right, the score upwards, a panel for each measure."""
    panels = []
    for measure in found.measures:
        lines = [
            Line(way, found.of(way, measure), colour, way != "model")
            for way, colour in WAYS.items()
        ]
        name = {"accuracy": "largest class", "distance": "always the middle"}[measure]
        own = [line for line in lines if line.scores]
        levels = {name: found.baseline[measure]} if measure in found.baseline else {}
        panels.append(Panel("", own, levels, measure))

    best, hidden = found.best, found.facts.get("hidden", 0)
    kind = f"one hidden layer of {hidden:,}" if hidden else "linear"
    below = f"{named(best.layer)}, the best on the validation part: {shown(best)}; probe: {kind}; band: 95%"

    return draw_panels(
        panels, path, f"{found.model}: what each layer knows of {found.target}", below
    )


def title_of(measure: Measure) -> str:
    return "accuracy, %" if measure == "accuracy" else "mean absolute distance"


def draw_panels(panels: Sequence[Panel], path: Path, title: str, below: str) -> Path:
    check_ending(path, "path")
    if not any(panel.lines for panel in panels):
        raise ValueError("panels: expected one line or more to draw")

    return save(lambda: draw(panels, title, below), path)


def draw(panels: Sequence[Panel], title: str, below: str) -> Figure:
    figure = Figure(
        figsize=(2.6 + 6.2 * len(panels), 5.6),
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1),
    )
    axes = figure.subplots(
        1, len(panels), squeeze=False, sharey=len({panel.measure for panel in panels}) == 1
    )[0]
    for one, panel in zip(axes, panels, strict=True):
        draw_panel(one, panel)

    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=6, fontsize=10
    )
    figure.suptitle(f"{title}\n\n", fontsize=16, fontweight="bold", x=0.01, ha="left")
    figure.text(0.012, 0.895, below, fontsize=11, color=PALE)

    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    factor = 100 if panel.measure == "accuracy" else 1
    layers = list(dict.fromkeys(score.layer for line in panel.lines for score in line.scores))
    for line, marker in zip(panel.lines, MARKERS * len(panel.lines), strict=False):
        x = [layers.index(score.layer) for score in line.scores]
        low, high = ([factor * (each.mean if end is None else end) for each, end in zip(line.scores, ends, strict=True)]
            for ends in ([each.low for each in line.scores], [each.high for each in line.scores]))  # fmt: skip
        axes.fill_between(x, low, high, color=line.colour, alpha=0.15, linewidth=0)
        axes.plot(
            x, [factor * each.mean for each in line.scores], color=line.colour, label=line.name, marker=marker,
            markersize=5, markeredgecolor="white", linewidth=1.8, linestyle="--" if line.dashed else "-",
        )  # fmt: skip

    for name, level in panel.levels.items():
        axes.axhline(factor * level, color=PALE, linewidth=1, linestyle=":", zorder=1)
        axes.annotate(  # outside, where no line runs
            name.replace(" ", "\n", 1), (1.01, factor * level), xycoords=("axes fraction", "data"), ha="left",
            va="center", fontsize=9, color=PALE, annotation_clip=False,
        )  # fmt: skip

    blocks = [place for place, layer in enumerate(layers) if layer.isdigit()]
    blocks = blocks[:: max(1, -(-len(blocks) // 16))]
    ticks = sorted({*blocks, *(place for place, layer in enumerate(layers) if not layer.isdigit())})
    axes.set_xticks(ticks, [layers[place] for place in ticks])

    for tick in axes.get_xticklabels():  # words lean outwards, away from the numbers between them
        if not tick.get_text().isdigit():
            tick.set_horizontalalignment("left" if tick.get_text() == "norm" else "right")

    axes.set_xlabel("layer")
    axes.set_ylabel(title_of(panel.measure))
    axes.set_title(panel.title, fontsize=12, loc="left")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=ROUND))
    axes.grid(axis="x", visible=False)


# In the terminal


def probe_table(found: Probed) -> Table:
    """A row for each layer: the score and its interval, and the controls."""
    made = Table(header_style="bold", caption_justify="left", caption=Text(told(found)))
    made.add_column("layer", no_wrap=True)
    columns = [
        (way, measure) for measure in found.measures for way in WAYS if found.of(way, measure)
    ]

    for way, measure in columns:
        made.add_column(f"{SHORT[way]}\n{measure}", justify="right")

    by_layer = [
        {score.layer: score for score in found.of(way, measure)} for way, measure in columns
    ]

    for layer in found.layers:
        cells = [Text(shown(scores[layer])) if layer in scores else Text("") for scores in by_layer]
        made.add_row(layer, *cells, style="bold" if layer == found.best.layer else "")

    return made


def told(found: Probed) -> str:
    said = ", ".join(
        f"{number(value, measure)} ({title_of(measure)})"
        for measure, value in found.baseline.items()
    )
    controls = [way for way in WAYS if way != "model" and found.of(way)]
    return (
        f"bold: {named(found.best.layer)}, the best on the validation part; all scores are of the test part\n"
        f"[ ]: 95% intervals over the test's texts; who always says the same: {said}"
        + (f"\ncontrols: {', '.join(controls)}" if controls else "")
    )


def shown(score: Scored) -> str:
    ends = "" if score.low is None or score.high is None else (
        f" [{number(score.low, score.measure)}, {number(score.high, score.measure)}]"
    )  # fmt: skip
    return number(score.mean, score.measure) + ends


def number(value: float, measure: Measure) -> str:
    return f"{100 * value:.1f}" if measure == "accuracy" else f"{value:.2f}"


def named(layer: str) -> str:
    return f"layer {layer}" if layer.isdigit() else layer
