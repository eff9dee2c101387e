"""Evaluation scores of several models in one figure, each with its confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qkv.insight.render.figures.figure_style import (
    COLOURS,
    INK,
    PALE,
    annotate,
    canvas,
    draw_baseline,
    draw_interval,
    plain_numbers,
    plain_ticks,
    save,
)

MARKERS = "osD^vP*X"
COLUMNS = 3  # panels side by side
FEW = 6  # dots in a panel that have room for their numbers
LOG_RATIO = 10  # scores further apart than this have a logarithmic axis
Styles = Mapping[str, Mapping[str, Any]]
"""Colour and marker of each model."""


class ModelScore(NamedTuple):
    """One score of one model on one task with one number of examples in the prompt."""

    model: str
    shots: int
    value: float
    low: float
    high: float
    random_baseline: float | None
    """The score of random guessing, where the task has one."""


class ScorePanel(NamedTuple):
    """All scores of one name on one task."""

    task: str
    name: str
    percent: bool
    higher_is_better: bool
    rows: int
    scores: list[ModelScore]


def plot(results: Mapping[str, Any], out: Path) -> Path:
    """Draw the results of `qkv evaluate --out`: a panel per score, a dot per model."""
    return save(lambda: draw(results["results"]), out)


# From the results to panels


def score_panels(results: Sequence[Mapping[str, Any]]) -> list[ScorePanel]:
    """One panel for each task and score name, in the order of the results."""
    panels: dict[tuple[str, str], ScorePanel] = {}
    for result in results:
        for score in result["scores"]:
            key = (result["task"], score["name"])
            if key not in panels:
                panels[key] = ScorePanel(
                    task=result["task"],
                    name=score["name"],
                    percent=score["percent"],
                    higher_is_better=score["higher_is_better"],
                    rows=result["rows"],
                    scores=[],
                )

            panels[key].scores.append(read_score(result, score, panels[key].percent))

    return list(panels.values())


def read_score(result: Mapping[str, Any], score: Mapping[str, Any], percent: bool) -> ModelScore:
    """A score with its interval, in percent where its panel is; without one the value alone."""
    factor = 100.0 if percent else 1.0
    value = factor * score["value"]
    low = value
    high = value
    baseline = result.get("chance")
    if score["low"] is not None:
        low = factor * score["low"]
    if score["high"] is not None:
        high = factor * score["high"]
    if baseline is not None:
        baseline *= factor

    return ModelScore(result["model"], result["shots"], value, low, high, baseline)


# Drawing


def draw(results: Sequence[Mapping[str, Any]]) -> Figure:
    """A grid of panels with one legend below."""
    panels = score_panels(results)
    styles = model_styles(results)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = canvas(max(5.0, 3.6 * columns), 3.2 * rows + 0.9, wspace=0.04, hspace=0.06)
    for number, panel in enumerate(panels, start=1):
        draw_panel(figure.add_subplot(rows, columns, number), panel, styles)

    entries = []
    for model, style in styles.items():
        entries.append(Line2D([], [], linestyle="none", markersize=8, label=model, **style))

    entries.append(Line2D([], [], color=PALE, linewidth=1.6, label="95% interval"))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=min(4, len(entries)), frameon=False
    )

    return figure


def model_styles(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each model."""
    styles = {}
    for index, model in enumerate(dict.fromkeys(result["model"] for result in results)):
        colour = COLOURS[index % len(COLOURS)]
        styles[model] = {"color": colour, "marker": MARKERS[index % len(MARKERS)]}

    return styles


def draw_panel(axes: Axes, panel: ScorePanel, styles: Styles) -> None:
    """One score: the number of examples on the x axis, and the models side by side."""
    shots = sorted({score.shots for score in panel.scores})
    by_model: dict[str, list[ModelScore]] = {}
    for score in sorted(panel.scores, key=lambda score: score.shots):
        by_model.setdefault(score.model, []).append(score)

    models = sorted(by_model, key=list(styles).index)
    numbered = len(panel.scores) <= FEW
    for number, model in enumerate(models):
        shift = 0.7 * ((number + 0.5) / len(models) - 0.5)
        x = [shots.index(score.shots) + shift for score in by_model[model]]
        draw_model(axes, by_model[model], x, styles[model], numbered)

    for score in panel.scores:
        if score.random_baseline is not None:
            draw_baseline(axes, score.random_baseline)
            break

    label_panel(axes, panel, shots)
    scale_y_axis(axes, panel)


def draw_model(
    axes: Axes,
    scores: Sequence[ModelScore],
    x: Sequence[float],
    style: Mapping[str, Any],
    numbered: bool,
) -> None:
    """A model's dots, joined by a dotted line, each with its interval and perhaps its number."""
    for at, score in zip(x, scores, strict=True):
        draw_interval(axes, at, score.low, score.high, style["color"])
        if numbered:
            annotate(axes, formatted(score.value), (at, score.value), (8, 0), color=INK)

    dots: Any = {"linewidth": 0.9, "linestyle": ":", "markersize": 8, "markeredgecolor": "white"}
    axes.plot(x, [score.value for score in scores], zorder=3, **dots, **style)


def label_panel(axes: Axes, panel: ScorePanel, shots: Sequence[int]) -> None:
    """Title, axis labels and ticks of a panel."""
    label = panel.name
    if panel.percent:
        label += ", %"
    if not panel.higher_is_better:
        label += " (lower is better)"

    ticks = list(map(str, shots))
    below = "examples in the prompt"
    if len(shots) == 1:
        ticks = [""]
        below = "1 row" if panel.rows == 1 else f"{panel.rows:,} rows"

    axes.set_title(panel.task, fontsize=12, fontweight="bold", loc="left", color=INK)
    axes.set_ylabel(label)
    axes.set_xlabel(below)
    axes.set_xlim(-0.6, len(shots) - 0.4)
    axes.set_xticks(range(len(shots)), ticks)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.12)


def scale_y_axis(axes: Axes, panel: ScorePanel) -> None:
    """A logarithmic axis where one of several perplexities would flatten the others.

    Accuracy, BLEU and chrF end at 100 and always have a linear axis.
    """
    lowest = min(score.low for score in panel.scores)
    highest = max(score.high for score in panel.scores)
    unbounded = not panel.higher_is_better
    if unbounded and lowest > 0 and highest > LOG_RATIO * lowest:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    else:
        plain_ticks(axes.yaxis, 5)


def formatted(value: float) -> str:
    """A score with three digits or so."""
    if value >= 1e5:
        return f"{value:.2g}"
    if value >= 1000:
        return f"{value:,.0f}"

    return f"{value:#.3g}".rstrip(".")
