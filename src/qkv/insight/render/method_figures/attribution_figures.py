"""Figures of attributions: a logit by layer and head, contributions by token, a map of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor

from qkv.insight.attribute.logit_attribution import LogitParts
from qkv.insight.render.figures.figure_style import COLOURS, PALE, colour_bar
from qkv.insight.render.figures.head_figures import (
    DIVERGING,
    LONGEST,
    NAMED,
    RISING,
    heat,
    sheet,
    write_texts,
)
from qkv.insight.render.views import label


def parts_figure(split: LogitParts, title: str, below: str) -> Figure:
    """Layers down, heads across, then attention's bias and the feed-forward layer."""
    columns = [split.heads]
    names = [str(head) for head in range(split.heads.shape[1])]
    if split.cross_heads is not None:
        columns.append(split.cross_heads)
        names += [f"cross {head}" for head in range(split.cross_heads.shape[1])]

    columns += [split.attention_bias.unsqueeze(1), split.feed_forward.unsqueeze(1)]
    values = torch.cat(columns, dim=1)
    names += ["bias", "feed-forward"]
    layers, count = values.shape

    figure, grid = sheet(max(6.4, 0.42 * count + 2.6), max(4.2, 0.19 * layers + 2.4), [1])
    axes = figure.add_subplot(grid[0, 0])
    largest = float(values.abs().max()) or 1.0
    image = heat(axes, values.numpy(), "", DIVERGING, TwoSlopeNorm(0, -largest, largest))
    if count <= NAMED:
        axes.set_xticks(range(count), names, rotation=60, ha="right", rotation_mode="anchor")

    colour_bar(axes, image, "contribution to the logit", 9, shrink=0.8)
    write_texts(figure, title, below)

    return figure


def tokens_figure(values: Sequence[tuple[str, float]], title: str, below: str) -> Figure:
    """A bar for each token, in the order of the text."""
    figure, grid = sheet(8, 0.28 * len(values) + 2.0, [1])
    axes = figure.add_subplot(grid[0, 0])
    colours = [COLOURS[1] if value < 0 else COLOURS[0] for _, value in values]
    axes.barh(range(len(values)), [value for _, value in values], 0.7, color=colours)
    axes.set_yticks(range(len(values)), [label(name, LONGEST) for name, _ in values])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.axvline(0, color=PALE, linewidth=1)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("contribution")
    write_texts(figure, title, below)

    return figure


def token_map_figure(
    values: Float[Tensor, "T S"],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    below: str,
) -> Figure:
    """Positions that read down, tokens that are read across."""
    T, S = values.shape
    figure, grid = sheet(max(5.6, 0.34 * S + 2.6), max(4.4, 0.3 * T + 2.2), [1])
    axes = figure.add_subplot(grid[0, 0])
    image = heat(axes, values.numpy(), "", RISING, None, (0, float(values.max()) or 1.0))
    axes.set_xlabel("token")
    axes.set_ylabel("position")
    if S <= NAMED:
        shown = [label(name, LONGEST) for name in columns]
        axes.set_xticks(range(S), shown, rotation=60, ha="right", rotation_mode="anchor")
    if T <= NAMED:
        axes.set_yticks(range(T), [label(name, LONGEST) for name in rows])

    colour_bar(axes, image, "", 9, shrink=0.8)
    write_texts(figure, title, below)

    return figure
