"""Figures of a look's predictions: the likeliest tokens at each position, and the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.generation.fill import Guess
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.figures.attention import BLUES, write_title
from qkv.insight.render.figures.figure_style import (
    COLOURS,
    INK,
    PALE,
    TILTED,
    annotate,
    canvas,
    colour_bar,
    hide_frame,
    write_cells,
)
from qkv.insight.render.views import (
    ViewChoice,
    label,
    labels,
    layer_names,
    prediction_title,
    view_data,
)

POSITIONS = 30  # most positions whose predictions are drawn; beyond, the last ones
GUESSES = 4
LEAST = 0.01  # probability of a guess that is named besides the likeliest
LENS_POSITIONS = 24  # positions of the lens whose cells have room for their tokens
LENS_LETTERS = 40  # font size per inch of a cell's height
FEW_LAYERS = 16  # layers that have high rows


# Next tokens


def draw_next(look: LookData, choice: ViewChoice) -> Figure:
    """The likeliest tokens after each position or, for a BERT, at each position."""
    predictions = view_data(look, "next")
    tokens = labels(look.reading.text)
    below = label(look.model, 60)
    if len(tokens) > POSITIONS:
        below += f", the last {POSITIONS} of {len(tokens):,} tokens"

    tokens_shown = tokens[-POSITIONS:]
    rows = range(len(tokens_shown))
    figure = canvas(10.5, max(2.6, 0.42 * len(rows) + 1.4))
    axes = figure.add_subplot()
    for row, guesses in zip(rows, predictions[-POSITIONS:], strict=True):
        draw_guesses(axes, row, guesses)

    axes.set_yticks(rows, tokens_shown, fontsize=14, color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 2)  # the right half is for the tokens beside the bars
    axes.set_xticks([])
    hide_frame(axes)
    axes.set_title(below, fontsize=12, color=PALE, loc="left")
    write_title(figure, prediction_title(look))

    return figure


def draw_guesses(axes: Axes, row: int, guesses: Sequence[Guess]) -> None:
    """A bar for the likeliest token, its name beside it, then the next likeliest ones."""
    best, *others = guesses
    axes.barh(row, best.probability, color=COLOURS[5], height=0.66)
    bold: dict[str, Any] = {"fontsize": 14, "color": INK, "fontweight": "bold"}
    text = f"{label(best.text, 16)} {best.probability:.0%}"
    best_text = annotate(axes, text, (best.probability, row), (7, 0), **bold)
    names = []
    for guess in others[: GUESSES - 1]:
        if guess.probability >= LEAST:
            names.append(f"{label(guess.text, 10)} {guess.probability:.0%}")

    pale: dict[str, Any] = {"xycoords": best_text, "fontsize": 12, "annotation_clip": False}
    annotate(axes, ",  ".join(names), (1, 0.5), (12, 0), **pale)


# Logit lens


def draw_lens(look: LookData, choice: ViewChoice) -> Figure:
    """Tokens across, layers upwards; each cell has the likeliest token, darker if more probable."""
    lens = view_data(look, "lens")
    tokens = labels(look.reading.text)
    depth = len(lens)
    has_texts = len(tokens) <= LENS_POSITIONS
    wide = 12 / len(tokens)  # inches of a cell
    if has_texts:
        wide = min(1.05, 20 / len(tokens))

    high = 0.34 if depth <= FEW_LAYERS else 0.26
    font = min(12.0, high * LENS_LETTERS)
    letters = max(2, int(wide * 72 / (0.6 * font)))
    figure = canvas(max(6.4, wide * len(tokens) + 1.9), high * depth + 2.0)
    axes = figure.add_subplot()

    probabilities = np.array([[guesses[0].probability for guesses in layer] for layer in lens])
    image = axes.imshow(probabilities, cmap=BLUES, vmin=0, vmax=1, aspect="auto", origin="lower")
    if has_texts:
        texts = [[label(guesses[0].text, letters) for guesses in layer] for layer in lens]
        write_cells(axes, texts, probabilities > 0.55, font)

    label_positions(axes, tokens, letters, has_texts)
    label_layers(axes, depth)
    hide_frame(axes)
    axes.set_title(label(look.model, 60), fontsize=12, color=PALE, loc="left")
    colour_bar(axes, image, "probability")
    write_title(figure, "Logit lens: the prediction after every layer")

    return figure


def label_positions(axes: Axes, tokens: Sequence[str], letters: int, has_texts: bool) -> None:
    """The input tokens on the x axis, turned where they are wider than their cells."""
    every = max(1, -(-len(tokens) // 48))
    names = [label(token, 12) for token in tokens]
    font = 13 if has_texts else 8
    turned = TILTED if max(map(len, names)) > letters or not has_texts else {}
    ticks = range(0, len(tokens), every)
    axes.set_xticks(ticks, names[::every], fontsize=font, color=INK, **turned)


def label_layers(axes: Axes, depth: int) -> None:
    every = max(1, -(-depth // 32))
    font = 12 if depth <= FEW_LAYERS else 10
    names = layer_names(depth)[::every]
    axes.set_yticks(range(0, depth, every), names, fontsize=font, color=INK)
