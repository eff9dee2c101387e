"""One view of a look as a figure for slides: PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.attention import (
    BLUES,
    all_heads,
    canvas,
    heat_map,
    hide_frame,
    matrix,
    matrix_size,
    write_title,
)
from qkv.insight.render.figures.attention_lines import lines_between
from qkv.insight.render.figures.figure_style import COLOURS, INK, check_ending
from qkv.insight.render.figures.prediction_figures import draw_lens, draw_next
from qkv.insight.render.views import (
    NAMES,
    Heads,
    View,
    attention_view,
    attributed,
    label,
    layer_names,
)

NUMBERED = 16  # layers or heads whose numbers have room
NORM_NAMES = 16  # layers that are named below their norms
FLAT_NAMES = 5  # names that have room side by side
LOGARITHMIC = 30  # norms with a larger ratio have a logarithmic axis


def save(
    look: LookData,
    path: Path,
    *,
    view: View = "head",
    kind: str | None = None,
    layer: int = 0,
    head: Heads = None,
    words: bool = False,
) -> Path:
    """Draw one view to a .png, .svg or .pdf file; see `draw`."""
    check_ending(path, "out")
    return figure_style.save(lambda: draw(look, view, kind, layer, head, words), path)


def draw(
    look: LookData,
    view: View = "head",
    kind: str | None = None,
    layer: int = 0,
    head: Heads = None,
    words: bool = False,
) -> Figure:
    """Draw one view.

    Args:
        look: The look.
        view: The view.
        kind: The kind of attention; see `LookData.of`.
        layer: The layer, for views of one layer.
        head: One head, several, or None for all of the layer.
        words: Whether tokens are joined to whole words.
    """
    match view:
        case "head":
            return draw_head(look, kind, layer, head, words)
        case "heads":
            attention = look.of(kind)
            title = f"{NAMES[attention.kind]}: all heads"
            return all_heads(attention, title, label(look.model, 60))
        case "lines":
            chosen = attention_view(look, kind, layer, head, words)
            return lines_between(chosen, label(look.model, 40))
        case "next":
            return draw_next(look)
        case "lens":
            return draw_lens(look)
        case "norms":
            return draw_norms(look)
        case "numbers":
            return draw_numbers(look.of(kind))
        case "attribution":
            return draw_attribution(look, layer, head, words)

    raise ValueError(f"view: expected one of {', '.join(get_args(View))}, not {view!r}")


# Attention


def draw_head(look: LookData, kind: str | None, layer: int, head: Heads, words: bool) -> Figure:
    """The weights of one head, or the mean of several, as a heat map."""
    view = attention_view(look, kind, layer, head, words)
    names = {"row_name": "queries", "column_name": "keys"}
    if view.attention.kind == "cross":
        names = {"row_name": "target (queries)", "column_name": "source (keys)"}

    below = label(look.model, 60)
    return heat_map(view.mean, view.rows, view.columns, view.name, below, **names)


def draw_attribution(look: LookData, layer: int, head: Heads, words: bool) -> Figure:
    """Attention weights of a head and, beside them, the attribution of the predictions."""
    attribution = attributed(look, words)
    view = attention_view(look, None, layer, head, words)
    wide, high = matrix_size(attribution.rows, attribution.columns)
    figure = canvas(max(9.6, 2 * wide + 0.6), high + 1.2)
    left, right = figure.subplots(1, 2)
    matrix(left, view.mean, view.rows, view.columns, view.name)
    matrix(
        right,
        attribution.weights,
        attribution.rows,
        attribution.columns,
        "gradient x input of the prediction in each row",
    )
    write_title(figure, "Attention is not explanation: attention weights and input attribution")

    return figure


def draw_numbers(attention: CapturedAttention) -> Figure:
    """Entropy and distance of each head: layers down, heads across."""
    layers, heads = attention.entropy.shape
    if layers == 0:
        raise ValueError("numbers: this look has no overview of its heads")

    panels = {"entropy, bits": attention.entropy}
    title = "entropy of each head"
    if not attention.distance.isnan().all():
        panels["distance, tokens"] = attention.distance
        title = "entropy and distance of each head"

    side = min(0.62, 9 / max(layers, heads))
    wide = max(3.6, side * heads + 1.6)
    figure = canvas(max(6.4, wide * len(panels) + 0.3), max(2.2, side * layers) + 1.6)
    for number, (name, values) in enumerate(panels.items(), start=1):
        draw_by_head(figure, figure.add_subplot(1, len(panels), number), values, name)

    write_title(figure, f"{NAMES[attention.kind]}: {title}")

    return figure


def draw_by_head(figure: Figure, axes: Axes, values: Float[Tensor, "L H"], name: str) -> None:
    """A heat map with numbers, or with a colour bar where they have no room."""
    layers, heads = values.shape
    largest = max(float(values.max()), 1e-9)
    image = axes.imshow(values.numpy(), cmap=BLUES, vmin=0, vmax=largest, aspect="equal")
    if max(layers, heads) <= NUMBERED:
        write_values(axes, values.numpy(), largest)
    else:
        bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30)
        bar.outline.set_visible(False)

    every = 1 if max(layers, heads) <= 2 * NUMBERED else 4
    axes.set_xticks(range(0, heads, every))
    axes.set_yticks(range(0, layers, every))
    hide_frame(axes)
    axes.tick_params(labelsize=12, labelcolor=INK)
    axes.set_xlabel("head", fontsize=13)
    axes.set_ylabel("layer", fontsize=13)
    axes.set_title(name, fontsize=14, loc="left")


def write_values(axes: Axes, values: Float[np.ndarray, "L H"], largest: float) -> None:
    for (layer, head), value in np.ndenumerate(values):
        colour = "white" if value > 0.6 * largest else INK
        axes.text(head, layer, f"{value:.1f}", ha="center", va="center", fontsize=11, color=colour)


# Norms


def draw_norms(look: LookData) -> Figure:
    """Norms by layer: the median over the positions as a line, minimum to maximum as a band."""
    if look.norms is None:
        raise ValueError(
            "norms: they were not computed; an RNN has no residual stream, or the text is long"
        )

    panels: dict[str, Sequence[Float[Tensor, "T"]]] = {"residual stream": look.norms.residual}
    if look.norms.gradient is not None:
        panels["gradient of the loss"] = look.norms.gradient

    return norms_figure(panels, f"Norms by layer: {label(look.model, 40)}")


def norms_figure(panels: Mapping[str, Sequence[Float[Tensor, "T"]]], title: str) -> Figure:
    figure = canvas(max(6.8, 5.6 * len(panels)), 4.6)
    for index, (name, layers) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), index + 1)
        draw_norm_panel(axes, layers, COLOURS[index])
        axes.set_title(name, fontsize=14, loc="left")

    write_title(figure, title)

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
    axes.set_xticks(x[::every], layer_names(len(values))[::every])
    if len(values) > FLAT_NAMES:
        for tick in axes.get_xticklabels():
            tick.set(rotation=45, ha="right", va="top", rotation_mode="anchor")

    axes.legend(fontsize=12, loc="best")
