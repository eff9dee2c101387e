"""One view of a look as a figure for slides: PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.figures.attention import (
    BLUES,
    all_heads,
    heat_map,
    matrix,
    matrix_size,
    write_title,
)
from qkv.insight.render.figures.attention_lines import lines_between
from qkv.insight.render.figures.figure_style import (
    COLOURS,
    INK,
    TILTED,
    canvas,
    colour_bar,
    hide_frame,
    write_cells,
)
from qkv.insight.render.figures.prediction_figures import draw_lens, draw_next
from qkv.insight.render.views import (
    NAMES,
    ViewChoice,
    attention_view,
    attribution_view,
    label,
    layer_names,
    view_data,
    with_overview,
)
from qkv.insight.render.walk.model_walk_figure import draw_model
from qkv.insight.render.walk.walk_figure import draw_walk

NUMBERED = 16  # layers or heads whose numbers have room
NORM_NAMES = 16  # layers that are named below their norms
FLAT_NAMES = 5  # names that have room side by side
LOGARITHMIC = 30  # norms with a larger ratio have a logarithmic axis


def draw(look: LookData, choice: ViewChoice) -> Figure:
    """Draw one view, by default a head."""
    view = choice.view or "head"
    if view not in VIEWS:
        raise ValueError(f"view: expected one of {', '.join(VIEWS)}, not {view!r}")

    return VIEWS[view](look, choice)


# Attention


def draw_head(look: LookData, choice: ViewChoice) -> Figure:
    """The weights of one head, or the mean of several, as a heat map."""
    view = attention_view(look, choice)
    names: Any = {"row_name": "queries", "column_name": "keys"}
    if view.attention.kind == "cross":
        names = {"row_name": "target (queries)", "column_name": "source (keys)"}

    below = label(look.model, 60)
    if view.told:
        below = f"{below}\n{view.told}"

    return heat_map(
        view.mean,
        view.rows,
        view.columns,
        view.name,
        below,
        **names,
        forbidden=view.forbidden,
        left=view.left,
    )


def draw_all_heads(look: LookData, choice: ViewChoice) -> Figure:
    """Small heat maps of all heads."""
    attention = with_overview(look, choice)
    below = label(look.model, 60)
    if choice.without_first:
        below += ", without the first token and special tokens"

    return all_heads(attention, f"{NAMES[attention.kind]}: all heads", below)


def draw_lines(look: LookData, choice: ViewChoice) -> Figure:
    """Attention as lines between tokens."""
    return lines_between(attention_view(look, choice), label(look.model, 40))


def draw_attribution(look: LookData, choice: ViewChoice) -> Figure:
    """Attention weights of a head and, beside them, the attribution of the predictions."""
    attribution = attribution_view(look, choice)
    view = attention_view(look, replace(choice, kind=None))
    wide, high = matrix_size(attribution.rows, attribution.columns)
    figure = canvas(max(9.6, 2 * wide + 0.6), high + 1.2)
    left, right = figure.subplots(1, 2)
    matrix(left, view.mean, view.rows, view.columns, view.name, forbidden=view.forbidden)
    matrix(right, *attribution, "gradient x input of the prediction in each row")
    write_title(figure, "Attention is not explanation: attention weights and input attribution")

    return figure


def draw_numbers(look: LookData, choice: ViewChoice) -> Figure:
    """Entropy and distance of each head: layers down, heads across."""
    attention = with_overview(look, choice)
    layers, heads = attention.entropy.shape
    panels = {"entropy, bits": attention.entropy}
    title = "entropy of each head"
    if not attention.distance.isnan().all():
        panels["distance, tokens"] = attention.distance
        title = "entropy and distance of each head"

    side = min(0.62, 9 / max(layers, heads))
    wide = max(3.6, side * heads + 1.6)
    figure = canvas(max(6.4, wide * len(panels) + 0.3), max(2.2, side * layers) + 1.6)
    for number, (name, values) in enumerate(panels.items(), start=1):
        draw_by_head(figure.add_subplot(1, len(panels), number), values, name)

    write_title(figure, f"{NAMES[attention.kind]}: {title}")

    return figure


def draw_by_head(axes: Axes, values: Float[Tensor, "L H"], name: str) -> None:
    """A heat map with numbers, or with a colour bar where they have no room."""
    layers, heads = values.shape
    largest = max(float(values.max()), 1e-9)
    image = axes.imshow(values.numpy(), cmap=BLUES, vmin=0, vmax=largest, aspect="equal")
    if max(layers, heads) <= NUMBERED:
        texts = [[f"{value:.1f}" for value in row] for row in values.tolist()]
        write_cells(axes, texts, values > 0.6 * largest, 11)
    else:
        colour_bar(axes, image)

    every = 1 if max(layers, heads) <= 2 * NUMBERED else 4
    axes.set_xticks(range(0, heads, every))
    axes.set_yticks(range(0, layers, every))
    hide_frame(axes)
    axes.tick_params(labelsize=12, labelcolor=INK)
    axes.set_xlabel("head", fontsize=13)
    axes.set_ylabel("layer", fontsize=13)
    axes.set_title(name, fontsize=14, loc="left")


# Norms


def draw_norms(look: LookData, choice: ViewChoice) -> Figure:
    """Norms by layer: the median over the positions as a line, minimum to maximum as a band."""
    residual, gradient = view_data(look, "norms")
    panels = {"residual stream": residual}
    if gradient is not None:
        panels["gradient of the loss"] = gradient

    figure = canvas(max(6.8, 5.6 * len(panels)), 4.6)
    for index, (name, layers) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), index + 1)
        draw_norm_panel(axes, layers, COLOURS[index])
        axes.set_title(name, fontsize=14, loc="left")

    write_title(figure, f"Norms by layer: {label(look.model, 40)}")

    return figure


def draw_norm_panel(axes: Axes, layers: Sequence[Float[Tensor, "T"]], colour: str) -> None:
    values = np.stack([layer.numpy() for layer in layers])  # (L + 1, T)
    x = range(len(values))
    low = np.nanmin(values, 1)
    median = np.nanmedian(values, 1)
    high = np.nanmax(values, 1)
    axes.fill_between(
        x, low, high, color=colour, alpha=0.18, linewidth=0, label="minimum to maximum"
    )
    axes.plot(x, median, color=colour, linewidth=3, marker="o", markersize=6, label="median")
    if low.min() > 0 and high.max() > LOGARITHMIC * low.min():
        axes.set_yscale("log")

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.tick_params(labelsize=12)
    every = -(-len(values) // NORM_NAMES)
    turned = TILTED if len(values) > FLAT_NAMES else {}
    axes.set_xticks(x[::every], layer_names(len(values))[::every], **turned)
    axes.legend(fontsize=12, loc="best")


VIEWS: dict[str, Callable[[LookData, ViewChoice], Figure]] = {
    "walk": draw_walk,
    "model": draw_model,
    "head": draw_head,
    "heads": draw_all_heads,
    "lines": draw_lines,
    "next": draw_next,
    "lens": draw_lens,
    "norms": draw_norms,
    "numbers": draw_numbers,
    "attribution": draw_attribution,
}
