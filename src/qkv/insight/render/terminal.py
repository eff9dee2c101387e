"""A look in the terminal: the views of the page as heat maps, bars and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.terminal_cells import (
    HeatMap,
    bar,
    cell,
    fitted,
    has_blocks,
    has_colours,
    ink,
    mosaic,
    style_of,
)
from qkv.insight.render.views import (
    NAMES,
    ViewChoice,
    attention_view,
    attribution_view,
    label,
    labels,
    layer_names,
    prediction_title,
    view_data,
    with_overview,
)
from qkv.insight.render.walk.model_walk_table import show_model
from qkv.insight.render.walk.walk_table import show_walk
from qkv.tables import Table

KEYS_NAMED = 4  # keys that are named for each query
WORTH_NAMING = 0.05
SMALLEST = 4  # cells of a head among all heads, at least ...
LARGEST = 16  # ... and at most
GUESS_WIDTH = 10  # cells of a token of the lens, at least
BAR = 24


def show(look: LookData, console: Console, choice: ViewChoice) -> None:
    """Print one view, by default a head."""
    view = choice.view or "head"
    if view not in VIEWS:
        raise ValueError(f"view: expected one of {', '.join(VIEWS)}, not {view!r}")

    VIEWS[view](look, console, choice)


def heading(console: Console, title: str, below: str = "") -> None:
    console.print(Text(title, style="bold"))
    if below:
        console.print(Text(below, style="dim"))


# Attention


def show_head(look: LookData, console: Console, choice: ViewChoice) -> None:
    """The weights of one head, or the mean of several, as a heat map."""
    view = attention_view(look, choice)
    heading(console, view.name, "Rows: queries, columns: keys; a row sums to 1.")
    if view.told:
        console.print(Text(f"{view.told}.", style="dim"))

    console.print(HeatMap(view.mean, view.rows, view.columns, forbidden=view.blank))


def show_heads(look: LookData, console: Console, choice: ViewChoice) -> None:
    """Small heat maps of all heads, layers down and heads across; their entropy if too many."""
    attention = with_overview(look, choice)
    layers, heads, t, s = attention.overview.shape
    name = NAMES[attention.kind]
    margin = len(f"layer {layers - 1}") + 2
    size = min(LARGEST, max(t, s), (console.width - margin) // heads - 1)
    if size < min(SMALLEST, s):
        heading(console, f"{name}: the entropy of all heads in bits, layers down, heads across")
        console.print(by_head(attention.entropy))
        return

    below = "Layers down, heads across. The brighter, the larger the weight."
    heading(console, f"{name}: all heads", below)
    above = Text(" " * margin, style="dim", no_wrap=True)
    for head in range(heads):
        above.append(fitted(str(head), min(s, size), console, "centre") + " ")

    console.print(above)
    for layer in range(layers):
        show_layer(attention.overview[layer], f"layer {layer}".ljust(margin), size, console)


def show_layer(overview: Float[Tensor, "H t s"], name: str, size: int, console: Console) -> None:
    """The heads of one layer side by side, with its name before the first line."""
    tiles = [mosaic(head, size, console) for head in overview]
    start = name
    for parts in zip(*tiles, strict=True):
        line = Text(start, no_wrap=True)
        for part in parts:
            line.append_text(part).append(" ")

        console.print(line)
        start = " " * len(name)

    console.print()


def show_lines(look: LookData, console: Console, choice: ViewChoice) -> None:
    """Each query with the keys of its largest weights."""
    view = attention_view(look, choice)
    heading(console, view.name, "Each query and the keys it attends to most.")
    if view.told:
        console.print(Text(f"{view.told}.", style="dim"))

    width = min(16, max(map(len, view.rows)) + 1)
    arrow = "─▶" if has_blocks(console) else "->"

    for row, weights in zip(view.rows, view.mean, strict=True):
        start = fitted(row, width, console, "right") + f" {arrow} "
        line = Text(start, no_wrap=True, overflow="ellipsis")
        largest = weights.topk(min(KEYS_NAMED, len(view.columns)))
        pairs = zip(largest.values.tolist(), largest.indices.tolist(), strict=True)
        for rank, (weight, column) in enumerate(pairs):
            if rank == 0 or weight >= WORTH_NAMING:
                line.append_text(cell(f" {weight:4.0%} ", math.sqrt(max(0.0, weight)), console))
                line.append(" " + token_text(view.columns[column], console) + "  ")

        console.print(line)


def show_attribution(look: LookData, console: Console, choice: ViewChoice) -> None:
    """The attention weights of a head and, below them, the attribution of the predictions."""
    attribution = attribution_view(look, choice)
    if look.attention:
        show_head(look, console, replace(choice, kind=None))
        console.print()

    heading(
        console,
        "Attribution: gradient times input",
        "Rows: predictions. Columns: the share of each input token; a row sums to 1.",
    )
    console.print(HeatMap(*attribution))


def show_numbers(look: LookData, console: Console, choice: ViewChoice) -> None:
    """Entropy and distance of each head: layers down, heads across."""
    attention = with_overview(look, choice)
    name = NAMES[attention.kind]
    below = "How widely a head attends: 0 is one token, 3 is eight tokens equally."
    heading(console, f"{name}: entropy in bits", below)
    console.print(by_head(attention.entropy))
    if attention.distance.isnan().all():
        return

    console.print()
    below = "The mean distance between a token and those it attends to."
    heading(console, f"{name}: distance in tokens", below)
    console.print(by_head(attention.distance))


def by_head(values: Float[Tensor, "L H"]) -> HeatMap:
    """A heat map with layers down and heads across; the largest value is the brightest."""
    layers, heads = values.shape
    largest = max(float(values.nan_to_num().max()), 1e-9)
    rows = [f"layer {layer}" for layer in range(layers)]
    columns = list(map(str, range(heads)))
    return HeatMap(
        values, rows, columns, shades=values / largest, format_value=lambda value: f"{value:.1f}"
    )


# Predictions


def show_next(look: LookData, console: Console, choice: ViewChoice) -> None:
    """The likeliest tokens after each position or, for a BERT, at each position."""
    predictions = view_data(look, "next")
    heading(console, prediction_title(look))
    tokens = labels(look.reading.text)
    width = min(16, max(map(len, tokens)) + 1)
    length = max(4, min(BAR, console.width - width - 60))

    for token, guesses in zip(tokens, predictions, strict=True):
        best, *others = guesses
        line = Text(fitted(token, width, console, "right") + " ", no_wrap=True, overflow="ellipsis")
        filled = bar(best.probability, length, has_blocks(console))
        line.append(filled.ljust(length + 1), style="cyan")
        line.append(f"{best.probability:4.0%} ")
        line.append(token_text(best.text, console), style="bold")
        for guess in others:
            line.append(f"  {guess.probability:.0%} ", style="dim")
            line.append(token_text(guess.text, console))

        console.print(line)


def show_lens(look: LookData, console: Console, choice: ViewChoice) -> None:
    """Layers down, tokens across, in each cell the likeliest token; a wide table is continued."""
    lens = view_data(look, "lens")
    heading(
        console,
        "Logit lens: the prediction after every layer",
        "Columns: the input tokens. The brighter, the higher the probability.",
    )
    names = layer_names(len(lens))
    margin = max(map(len, names)) + 1
    longest = max(len(label(guesses[0].text)) for layer in lens for guesses in layer)
    width = max(6, min(GUESS_WIDTH, longest)) + 2
    tokens = labels(look.reading.text)
    columns = max(1, (console.width - margin) // width)

    for first in range(0, len(tokens), columns):
        above = Text(" " * margin, no_wrap=True, style="bold")
        for token in tokens[first : first + columns]:
            above.append(fitted(f" {token}", width, console))

        console.print(above)
        for name, layer in zip(names, lens, strict=True):
            line = Text(fitted(name, margin, console), no_wrap=True)
            for guesses in layer[first : first + columns]:
                line.append_text(guess_cell(guesses, width, console))

            console.print(line)

        console.print()


def guess_cell(guesses: Sequence[Guess], width: int, console: Console) -> Text:
    """The likeliest token, shaded by its probability."""
    best = guesses[0]
    text = fitted(f" {label(best.text)}", width - 1, console)
    if has_colours(console):
        return Text(text + " ", style=style_of(best.probability))

    return Text(text + ink(best.probability, console))


# Norms


def show_norms(look: LookData, console: Console, choice: ViewChoice) -> None:
    """A bar for each layer: the median over the positions, with minimum and maximum."""
    residual, gradient = view_data(look, "norms")
    below = "The median over the positions, then minimum and maximum."
    heading(console, "Residual stream norm", below)
    console.print(norm_table(residual, console))
    if gradient is not None:
        heading(console, "Gradient norm", below)
        console.print(norm_table(gradient, console))


def norm_table(layers: Sequence[Float[Tensor, "T"]], console: Console) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)

    # The last position of a text has no loss, and so no gradient.
    known = [layer[~layer.isnan()] for layer in layers]
    medians = [float(torch.quantile(layer, 0.5)) for layer in known]
    largest = max(medians) or 1.0

    for name, layer, median in zip(layer_names(len(layers)), known, medians, strict=True):
        table.add_row(
            name,
            Text(bar(median / largest, BAR, has_blocks(console)), style="cyan"),
            f"{median:.3g}",
            Text(f"{layer.min():.3g} to {layer.max():.3g}", style="dim"),
        )

    return table


def token_text(text: str, console: Console) -> str:
    """A token in at most 20 cells, in characters that the console has."""
    shown = label(text, 20)
    if has_blocks(console):
        return shown

    return fitted(shown, len(shown), console)


VIEWS: dict[str, Callable[[LookData, Console, ViewChoice], None]] = {
    "walk": show_walk,
    "model": show_model,
    "head": show_head,
    "heads": show_heads,
    "lines": show_lines,
    "next": show_next,
    "lens": show_lens,
    "norms": show_norms,
    "numbers": show_numbers,
    "attribution": show_attribution,
}
