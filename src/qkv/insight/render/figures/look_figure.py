"""A look as a picture for slides: one view, as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from qkv.insight.inspect.capture import Attention
from qkv.insight.look import Look
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.attention import (
    BLUES,
    all_heads,
    bare,
    canvas,
    entitle,
    heat_map,
    lines_between,
    matrix,
    room,
)
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, check_ending
from qkv.insight.render.views import (
    NAMES,
    Heads,
    View,
    attention_view,
    attributed,
    label,
    labels,
    layer_names,
    question,
)

PLACES = 30  # places whose guesses are drawn; of more, the last ones
GUESSES = 4
LENS_PLACES = 24  # places of the lens that have room for their words
LENS_LETTERS = 40  # points that letters have of an inch of a cell
NUMBERED = 16  # layers or heads whose numbers have room
NORM_NAMES = 16  # layers that are named below their norms
FLAT_NAMES = 5  # names that have room beside each other
LOGARITHMIC = 30  # from this ratio on, norms are drawn by their logarithm


def save(look: Look, path: Path, **how: Any) -> Path:
    """Draw one view to a .png, .svg or .pdf file; view, kind, layer, head and words choose it."""
    check_ending(path, "out")
    return figure_style.save(lambda: draw(look, **how), path)


def draw(
    look: Look,
    view: View = "head",
    kind: str | None = None,
    layer: int = 0,
    head: Heads = None,
    words: bool = False,
) -> Figure:
    match view:
        case "head":
            return draw_head(look, kind, layer, head, words)
        case "heads":
            attention = look.of(kind)
            return all_heads(
                attention, f"{NAMES[attention.kind]}: all heads at a glance", label(look.model, 60)
            )
        case "lines":
            one = attention_view(look, kind, layer, head, words)
            return lines_between(one, label(look.model, 40))
        case "next":
            return draw_next(look)
        case "lens":
            return draw_lens(look)
        case "norms":
            return draw_norms(look)
        case "numbers":
            return draw_numbers(look, look.of(kind))
        case "attribution":
            return draw_attribution(look, layer, head, words)

    raise ValueError(f"view: expected one of {', '.join(get_args(View))}, not {view!r}")


# Attention


def draw_head(look: Look, kind: str | None, layer: int, head: Heads, words: bool) -> Figure:
    one = attention_view(look, kind, layer, head, words)
    across = one.attention.kind == "cross"
    return heat_map(
        one.mean,
        one.rows,
        one.columns,
        one.name,
        label(look.model, 60),
        row_name="target: looks" if across else "who looks",
        column_name="source: looked at" if across else "at whom",
    )


def draw_attribution(look: Look, layer: int, head: Heads, words: bool) -> Figure:
    """Where a head looks, and beside it what the output owes to each word: two different questions."""
    part = attributed(look, words)
    one = attention_view(look, None, layer, head, words)
    wide, high = room(part.rows, part.columns)
    figure = canvas(max(9.6, 2 * wide + 0.6), high + 1.2)
    left, right = figure.subplots(1, 2)
    matrix(left, one.mean, one.rows, one.columns, one.name)
    matrix(
        right,
        part.weights,
        part.rows,
        part.columns,
        "gradient times input, of what is said in the row",
    )

    entitle(figure, "Attention is not explanation: weights, and what the output owes to each word")

    return figure


def draw_numbers(look: Look, attention: Attention) -> Figure:
    """Entropy and distance of each head: layers down, heads across."""
    L, H = attention.entropy.shape
    if not L:
        raise ValueError("numbers: this look has no overview of its heads")

    panels = {"entropy, bits": attention.entropy, "distance, tokens": attention.distance}
    shown = {name: values for name, values in panels.items() if not values.isnan().all()}
    side = min(0.62, 9 / max(L, H))
    wide = max(3.6, side * H + 1.6)
    figure = canvas(max(6.4, wide * len(shown) + 0.3), max(2.2, side * L) + 1.6)

    for place, (name, values) in enumerate(shown.items()):
        by_head(figure, figure.add_subplot(1, len(shown), place + 1), values, name)

    how = "how widely and how far" if len(shown) == 2 else "how widely"
    entitle(figure, f"{NAMES[attention.kind]}: {how} each head looks")

    return figure


def by_head(figure: Figure, axes: Axes, values: Float[Tensor, "L H"], name: str) -> None:
    L, H = values.shape
    most = max(float(values.max()), 1e-9)
    image = axes.imshow(values.numpy(), cmap=BLUES, vmin=0, vmax=most, aspect="equal")
    small = max(L, H) <= NUMBERED

    for (layer, head), value in np.ndenumerate(values.numpy()) if small else ():
        colour = "white" if value > 0.6 * most else INK
        axes.text(head, layer, f"{value:.1f}", ha="center", va="center", fontsize=11, color=colour)

    if not small:
        bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30)
        bar.outline.set_visible(False)

    every = 1 if max(L, H) <= 2 * NUMBERED else 4
    axes.set_xticks(range(0, H, every))
    axes.set_yticks(range(0, L, every))
    bare(axes)
    axes.tick_params(labelsize=12, labelcolor=INK)
    axes.set_xlabel("head", fontsize=13)
    axes.set_ylabel("layer", fontsize=13)
    axes.set_title(name, fontsize=14, loc="left")


# What would be said


def draw_next(look: Look) -> Figure:
    """Each token with what is likeliest after it, or, of a BERT, in its place."""
    if look.next is None:
        raise ValueError("next: this model says no words")

    tokens = labels(look.reading.text)
    first = max(0, len(tokens) - PLACES)
    shown, guessed = tokens[first:], look.next[first:]
    figure = canvas(10.5, max(2.6, 0.42 * len(shown) + 1.4))
    axes = figure.add_subplot()
    places = range(len(shown))
    axes.barh(
        places, [guesses[0].probability for guesses in guessed], color=COLOURS[5], height=0.66
    )

    for place, (best, *others) in zip(places, guessed, strict=True):
        start = axes.annotate(
            f"{label(best.text, 16)} {best.probability:.0%}", (best.probability, place), xytext=(7, 0),
            textcoords="offset points", va="center", fontsize=14, color=INK, fontweight="bold",
        )  # fmt: skip
        others = [each for each in others[: GUESSES - 1] if each.probability >= 0.01]
        rest = ",  ".join(f"{label(each.text, 10)} {each.probability:.0%}" for each in others)
        axes.annotate(
            rest, (1, 0.5), xycoords=start, xytext=(12, 0), textcoords="offset points", va="center", fontsize=12,
            color=PALE, annotation_clip=False,
        )  # fmt: skip

    axes.set_yticks(places, shown, fontsize=14, color=INK)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 2)  # to the right of the bars stands what they mean
    axes.set_xticks([])
    bare(axes)
    of = f", the last {PLACES} of {len(tokens):,} tokens" if first else ""
    axes.set_title(label(look.model, 60) + of, fontsize=12, color=PALE, loc="left")
    entitle(figure, question(look))

    return figure


def draw_lens(look: Look) -> Figure:
    """Tokens to the right, layers upwards; in each cell the likeliest token, the darker the surer."""
    if look.lens is None:
        raise ValueError("lens: it was not computed; this model says no words, or the text is long")

    tokens, depth = labels(look.reading.text), len(look.lens)
    sure = np.array(
        [[guesses[0].probability for guesses in layer] for layer in look.lens]
    )  # (L + 1, T)
    small = len(tokens) <= LENS_PLACES
    wide = min(1.05, 20 / len(tokens)) if small else 12 / len(tokens)
    high = 0.34 if depth <= 16 else 0.26
    figure = canvas(max(6.4, wide * len(tokens) + 1.9), high * depth + 2.0)
    axes = figure.add_subplot()
    image = axes.imshow(sure, cmap=BLUES, vmin=0, vmax=1, aspect="auto", origin="lower")
    font = min(12.0, high * LENS_LETTERS)
    letters = max(2, int(wide * 72 / (0.6 * font)))

    for (layer, place), probability in np.ndenumerate(sure) if small else ():
        colour = "white" if probability > 0.55 else INK
        text = label(look.lens[layer][place][0].text, letters)
        axes.text(place, layer, text, ha="center", va="center", fontsize=font, color=colour)

    every = max(1, -(-len(tokens) // 48))
    names = [label(token, 12) for token in tokens]
    turned = max(map(len, names)) > letters or not small
    axes.set_xticks(
        range(0, len(tokens), every), names[::every], fontsize=13 if small else 8, color=INK
    )

    for name in axes.get_xticklabels() if turned else ():
        name.set(rotation=45, ha="right", va="top", rotation_mode="anchor")

    steps = max(1, -(-depth // 32))
    axes.set_yticks(
        range(0, depth, steps),
        layer_names(depth)[::steps],
        fontsize=12 if depth <= 16 else 10,
        color=INK,
    )

    bare(axes)
    axes.set_title(label(look.model, 60), fontsize=12, color=PALE, loc="left")
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("probability", fontsize=12)
    bar.ax.tick_params(labelsize=11, length=0)
    bar.outline.set_visible(False)
    entitle(figure, "The prediction after every layer")

    return figure


# Norms


def draw_norms(look: Look) -> Figure:
    """By layer: the median over the text as a line, and from the least to the most as a band."""
    if look.norms is None:
        raise ValueError(
            "norms: they were not computed; an RNN has no residual stream, or the text is long"
        )

    found = {"residual stream": look.norms.residual, "gradient of the loss": look.norms.gradient}
    panels = {name: layers for name, layers in found.items() if layers is not None}
    figure = canvas(max(6.8, 5.6 * len(panels)), 4.6)

    for place, (name, layers) in enumerate(panels.items()):
        norm_panel(figure.add_subplot(1, len(panels), place + 1), layers, name, COLOURS[place])

    entitle(figure, f"Norms by layer: {label(look.model, 40)}")

    return figure


def norm_panel(axes: Axes, layers: Sequence[Float[Tensor, "T"]], name: str, colour: str) -> None:
    values = np.stack([layer.numpy() for layer in layers])  # (L + 1, T)
    x, names = range(len(values)), layer_names(len(values))
    low, middle, high = np.nanmin(values, 1), np.nanmedian(values, 1), np.nanmax(values, 1)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, label="least to most")
    axes.plot(
        x, middle, color=colour, linewidth=3, marker="o", markersize=6, label="median of the text"
    )
    if low.min() > 0 and high.max() > LOGARITHMIC * low.min():
        axes.set_yscale("log")

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.tick_params(labelsize=12)
    every = -(-len(values) // NORM_NAMES)
    axes.set_xticks(x[::every], names[::every])

    for tick in axes.get_xticklabels() if len(values) > FLAT_NAMES else ():
        tick.set(rotation=45, ha="right", va="top", rotation_mode="anchor")

    axes.set_title(name, fontsize=14, loc="left")
    axes.legend(fontsize=12, loc="best")
