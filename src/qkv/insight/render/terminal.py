"""A look in the terminal: the views of the page as coloured cells, bars and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import torch
from jaxtyping import Float
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import Attention
from qkv.insight.look import Look
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
    Heads,
    View,
    attention_view,
    attributed,
    label,
    labels,
    layer_names,
    question,
)
from qkv.tables import Table

LOOKED_AT = 4  # words that are named for a word that looks
WORTH_NAMING = 0.05
SMALLEST, LARGEST = 4, 16  # cells of a head among all heads
GUESSED = 10  # cells of a guess of the lens, at least
BAR = 24


def show(
    look: Look,
    console: Console,
    *,
    view: View = "head",
    kind: str | None = None,
    layer: int = 0,
    head: Heads = None,
    words: bool = False,
) -> None:
    """Print one view."""
    match view:
        case "head":
            show_head(look, console, kind, layer, head, words)
        case "heads":
            show_heads(look.of(kind), console)
        case "lines":
            show_lines(look, console, kind, layer, head, words)
        case "next":
            show_next(look, console)
        case "lens":
            show_lens(look, console)
        case "norms":
            show_norms(look, console)
        case "numbers":
            show_numbers(look.of(kind), console)
        case "attribution":
            show_attribution(look, console, layer, head, words)
        case _:
            raise ValueError(f"view: expected one of {', '.join(get_args(View))}, not {view!r}")


def heading(console: Console, title: str, below: str = "") -> None:
    console.print(Text(title, style="bold"))
    if below:
        console.print(Text(below, style="dim"))


# Attention


def show_head(
    look: Look, console: Console, kind: str | None, layer: int, head: Heads, words: bool
) -> None:
    one = attention_view(look, kind, layer, head, words)
    heading(console, one.name, "A row looks at the columns; its weights sum to 1.")
    console.print(HeatMap(one.mean, one.rows, one.columns))


def show_heads(attention: Attention, console: Console) -> None:
    """Layers down, heads across."""
    L, H, t, s = attention.overview.shape
    if not L:
        raise ValueError("heads: this look has no overview of its heads")

    margin = len(f"layer {L - 1}") + 2
    size = min(LARGEST, max(t, s), (console.width - margin) // H - 1)
    name = NAMES[attention.kind]
    if size < min(SMALLEST, s):
        heading(console, f"{name}: the entropy of all heads in bits, layers down, heads across")
        console.print(by_head(attention.entropy))
        return

    heading(
        console,
        f"{name}: all heads at a glance",
        "Layers down, heads across. The brighter, the more weight.",
    )
    wide = min(s, size)
    above = "".join(fitted(str(head), wide, console, "centre") + " " for head in range(H))
    console.print(Text(" " * margin + above, style="dim", no_wrap=True))

    for layer in range(L):
        blocks = [mosaic(attention.overview[layer, head], size, console) for head in range(H)]
        for number, parts in enumerate(zip(*blocks, strict=True)):
            line = Text(
                f"layer {layer}".ljust(margin) if number == 0 else " " * margin, no_wrap=True
            )
            for part in parts:
                line.append_text(part).append(" ")

            console.print(line)

        console.print()


def show_lines(
    look: Look, console: Console, kind: str | None, layer: int, head: Heads, words: bool
) -> None:
    """Each word, and whom it looks at most."""
    one = attention_view(look, kind, layer, head, words)
    heading(console, one.name, "Each word, and the words it looks at most.")
    width = min(16, max(len(row) for row in one.rows) + 1)
    arrow = "─▶" if has_blocks(console) else "->"

    for row, weights in zip(one.rows, one.mean, strict=True):
        line = Text(
            fitted(row, width, console, "right") + f" {arrow} ", no_wrap=True, overflow="ellipsis"
        )
        most = weights.topk(min(LOOKED_AT, len(one.columns)))
        for rank, (weight, place) in enumerate(
            zip(most.values.tolist(), most.indices.tolist(), strict=True)
        ):
            if rank == 0 or weight >= WORTH_NAMING:
                line.append_text(cell(f" {weight:4.0%} ", math.sqrt(max(0.0, weight)), console))
                line.append(" " + said(one.columns[place], console) + "  ")

        console.print(line)


def show_attribution(look: Look, console: Console, layer: int, head: Heads, words: bool) -> None:
    """Where a head looks, and below it what the output owes to each word: two different questions."""
    part = attributed(look, words)
    if look.attention:
        show_head(look, console, None, layer, head, words)
        console.print()

    heading(
        console,
        "Attribution: gradient times input",
        "Row: what is said there. Columns: how much it would change with each word; a row sums to 1.",
    )
    console.print(HeatMap(part.weights, part.rows, part.columns))


def show_numbers(attention: Attention, console: Console) -> None:
    """Entropy and distance of each head: layers down, heads across."""
    name = NAMES[attention.kind]
    if not len(attention.entropy):
        raise ValueError("numbers: this look has no overview of its heads")

    heading(
        console,
        f"{name}: entropy in bits",
        "How widely a head looks: 0 is one word, 3 is eight words alike.",
    )
    console.print(by_head(attention.entropy))
    if attention.distance.isnan().all():
        return

    console.print()
    heading(
        console,
        f"{name}: distance in tokens",
        "How far away the words are that a head looks at, on average.",
    )
    console.print(by_head(attention.distance))


def by_head(values: Float[Tensor, "L H"]) -> HeatMap:
    L, H = values.shape
    most = max(float(values.nan_to_num().max()), 1e-9)
    rows, columns = [f"layer {layer}" for layer in range(L)], [str(head) for head in range(H)]
    return HeatMap(values, rows, columns, shades=values / most, say=lambda value: f"{value:.1f}")


# What would be said


def show_next(look: Look, console: Console) -> None:
    """Each token with what is likeliest after it, or, of a BERT, in its place."""
    if look.next is None:
        raise ValueError("next: this model says no words")

    heading(console, question(look))
    tokens = labels(look.reading.text)
    width = min(16, max(map(len, tokens)) + 1)
    length = max(4, min(BAR, console.width - width - 60))

    for token, guesses in zip(tokens, look.next, strict=True):
        first, *others = guesses
        line = Text(fitted(token, width, console, "right") + " ", no_wrap=True, overflow="ellipsis")
        line.append(
            bar(first.probability, length, has_blocks(console)).ljust(length + 1), style="cyan"
        )
        line.append(f"{first.probability:4.0%} ").append(said(first.text, console), style="bold")
        for guess in others:
            line.append(f"  {guess.probability:.0%} ", style="dim").append(
                said(guess.text, console)
            )

        console.print(line)


def show_lens(look: Look, console: Console) -> None:
    """Layers down, tokens across, and in each cell the likeliest token there; as many columns as
    there is room for.
    """
    if look.lens is None:
        raise ValueError("lens: it was not computed; this model says no words, or the text is long")

    heading(
        console,
        "The prediction after every layer",
        "Above each column the token that is read. The brighter, the surer.",
    )
    tokens = labels(look.reading.text)
    names = layer_names(len(look.lens))
    margin = max(map(len, names)) + 1
    widest = max(len(label(row[0].text)) for layer in look.lens for row in layer)
    width = max(6, min(GUESSED, widest)) + 2
    at_once = max(1, (console.width - margin) // width)

    for first in range(0, len(tokens), at_once):
        places = range(first, min(len(tokens), first + at_once))
        above = Text(" " * margin, no_wrap=True, style="bold")
        for place in places:
            above.append(fitted(f" {tokens[place]}", width, console))

        console.print(above)
        for name, guesses in zip(names, look.lens, strict=True):
            line = Text(fitted(name, margin, console), no_wrap=True)
            for place in places:
                line.append_text(guess_cell(guesses[place], width, console))

            console.print(line)

        console.print()


def guess_cell(guesses: Sequence[Guess], width: int, console: Console) -> Text:
    best = guesses[0]
    text = fitted(f" {label(best.text)}", width - 1, console) + " "
    if has_colours(console):
        return Text(text, style=style_of(best.probability))

    return Text(text[:-1] + ink(best.probability, console))


# Norms


def show_norms(look: Look, console: Console) -> None:
    """A bar for each layer: the median over the text, and how far it ranges."""
    if look.norms is None:
        raise ValueError(
            "norms: they were not computed; an RNN has no residual stream, or the text is long"
        )

    of = {
        "The residual stream's norm": look.norms.residual,
        "The gradient's norm": look.norms.gradient,
    }

    for title, layers in of.items():
        if layers is not None:
            heading(console, title, "The median over the text, and from the least to the most.")
            console.print(norm_table(layers, console))


def norm_table(layers: Sequence[Float[Tensor, "T"]], console: Console) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)

    known = [layer[~layer.isnan()] for layer in layers]  # on the last word of a text no loss hangs
    medians = [float(torch.quantile(layer, 0.5)) for layer in known]
    most = max(medians) or 1.0

    for name, layer, median in zip(layer_names(len(layers)), known, medians, strict=True):
        table.add_row(
            name,
            Text(bar(median / most, BAR, has_blocks(console)), style="cyan"),
            f"{median:.3g}",
            Text(f"{layer.min():.3g} to {layer.max():.3g}", style="dim"),
        )

    return table


def said(text: str, console: Console) -> str:
    """A word where there is room for it."""
    shown = label(text, 20)
    return fitted(shown, len(shown), console) if not has_blocks(console) else shown
