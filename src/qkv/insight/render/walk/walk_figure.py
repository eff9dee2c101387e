"""Walk one head as a figure: the scores of one query, scaled and masked, and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.figures.attention import write_title
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, canvas
from qkv.insight.render.views import NAMES, ViewChoice, label, labels
from qkv.insight.render.walk.walk_view import (
    chosen_query,
    chosen_walk,
    column_names,
    formula,
    listed_keys,
    open_scores,
)

KEYS = 30  # most keys that are drawn; beyond, those with the largest weights
MARGIN = 0.35  # room for the numbers beside the bars, as a part of the axis


def draw_walk(look: LookData, choice: ViewChoice) -> Figure:
    """One query of one head: its scores, the same scaled and masked, and the weights."""
    walk = chosen_walk(look, choice)
    query = chosen_query(look, walk, choice)
    attention = look.of(walk.kind)
    keys = listed_keys(walk, query, KEYS)
    columns = labels(attention.columns)
    hidden = [not bool(walk.visible[query, key]) for key in keys]

    raw = walk.equation.raw_scores()[query, keys].tolist()
    scores = open_scores(walk, query)[keys].tolist()
    weights = walk.weights[query, keys].tolist()
    first, second = column_names(walk)

    figure = canvas(11, max(2.8, 0.4 * len(keys) + 1.6))
    panels = figure.subplots(1, 3, sharey=True)
    draw_bars(panels[0], raw, [False] * len(keys), first, COLOURS[0])
    draw_bars(panels[1], scores, hidden, f"{second}, mask", COLOURS[1])
    draw_bars(panels[2], weights, hidden, "softmax", COLOURS[2], "{:.0%}")
    panels[0].set_yticks(range(len(keys)), [columns[key] for key in keys])
    panels[0].invert_yaxis()

    token = label(labels(attention.rows)[query], 16)
    name = f"{NAMES[walk.kind]}, layer {walk.layer}, head {walk.head}"
    write_title(figure, f"{name}, token {query}: {token}")
    figure.supxlabel(formula(walk), fontsize=14, color=PALE)

    return figure


def draw_bars(
    axes: Axes,
    values: Sequence[float],
    hidden: Sequence[bool],
    name: str,
    colour: str,
    number: str = "{:.2f}",
) -> None:
    """A bar with its number for each key; those that the mask hides are hatched."""
    for row, (value, covered) in enumerate(zip(values, hidden, strict=True)):
        style: dict[str, Any] = {"color": colour}
        if covered:
            style = {"facecolor": "none", "edgecolor": PALE, "hatch": "////"}

        axes.barh(row, value, height=0.7, **style)
        text = "hidden" if covered else number.format(value)
        axes.annotate(
            text,
            (max(value, 0.0), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=11,
            color=PALE if covered else INK,
        )

    most = max(*values, 0.0, 1e-6)
    least = min(*values, 0.0)
    axes.set_xlim(least - 0.02 * (most - least), most + MARGIN * (most - least))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.tick_params(length=0, labelsize=12, labelcolor=INK)
    axes.set_title(name, fontsize=14, loc="left")
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
