"""Walk one head in the terminal: one row for each token that is looked at, one column a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from rich.console import Console
from rich.text import Text

from qkv.generation.fill import Guess
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.terminal_cells import bar, fitted, has_blocks
from qkv.insight.render.views import NAMES, ViewChoice, labels
from qkv.insight.render.walk.walk_view import (
    chosen_query,
    chosen_walk,
    column_names,
    formula,
    listed_keys,
    open_scores,
)
from qkv.insight.walk.head_walk import HeadWalk
from qkv.tables import Table

TOKEN_WIDTH = 12
BAR_WIDTH = 20
NARROW = 64
"""Columns below which the table leaves out what the others imply."""
ROWS = 48
"""Keys with rows of their own; of a longer text, those of the largest weights."""
GUESSES = 3


def show_walk(look: LookData, console: Console, choice: ViewChoice) -> None:
    """One query of one head, from its scores to what the head writes."""
    walk = chosen_walk(look, choice)
    attention = look.of(walk.kind)
    rows = labels(attention.rows)
    columns = labels(attention.columns)
    query = chosen_query(look, walk, choice)

    token = shown(rows[query], console)
    title = f"{NAMES[walk.kind]}, layer {walk.layer}, head {walk.head}"
    console.print(Text(f"{title}: token {query}, {token}", style="bold"))
    console.print(Text(formula(walk, plain=not has_blocks(console)), style="dim"))
    console.print(walk_rows(walk, query, columns, console))
    console.print(Text(summary(walk, query, columns, console)))
    console.print(Text(written(walk, query)))
    if walk.lens is not None:
        console.print(Text(f"Lens before: {guesses(walk.lens.before[query], console)}"))
        console.print(Text(f"with the head: {guesses(walk.lens.after[query], console)}"))


def walk_rows(walk: HeadWalk, query: int, columns: Sequence[str], console: Console) -> Table:
    """A row for each key: its score, scaled and masked, its weight and its value; then the sum."""
    equation = walk.equation
    wide = console.width >= NARROW
    table = Table(box=None, pad_edge=False)
    for header, justify in headers(walk, wide, console):
        table.add_column(header, justify=justify, no_wrap=True)

    raw = equation.raw_scores()[query].tolist()
    scores = open_scores(walk, query).tolist()
    lengths = equation.value.norm(dim=-1).tolist()
    room = BAR_WIDTH if wide else max(4, console.width - 40)
    for key in listed_keys(walk, query, ROWS):
        weight = float(walk.weights[query, key])
        hidden = not bool(walk.visible[query, key])
        share = "hidden" if hidden else f"{weight:.1%}"
        filled = bar(weight, room, has_blocks(console))
        token = fitted(columns[key], TOKEN_WIDTH, console).rstrip()
        cells = [str(key), token, f"{scores[key]:.2f}", share, filled]
        if wide:
            cells = [str(key), token, f"{raw[key]:.2f}", *cells[2:], f"{lengths[key]:.2f}"]

        table.add_row(*map(Text, cells), style="dim" if hidden else None)

    total = f"{float(walk.weights[query].sum()):.0%}"
    last = ["", "sum", "", total, ""]
    if wide:
        last = ["", "sum", "", "", total, "", f"{float(walk.output[query].norm()):.2f}"]

    table.add_row(*map(Text, last), style="bold")
    return table


def headers(
    walk: HeadWalk, wide: bool, console: Console
) -> list[tuple[str, Literal["left", "right"]]]:
    """The names of the columns, and on which side they stand."""
    raw, score = column_names(walk, plain=not has_blocks(console))
    if not wide:
        return [("", "right"), ("key", "left"), (score, "right"), ("weight", "right"), ("", "left")]

    return [
        ("", "right"),
        ("key", "left"),
        (raw, "right"),
        (score, "right"),
        ("weight", "right"),
        ("", "left"),
        ("|v|", "right"),
    ]


def summary(walk: HeadWalk, query: int, columns: Sequence[str], console: Console) -> str:
    """How widely the query looks, where it looks most, and the length of what it gets."""
    weights = walk.weights[query].double()
    alike = math.exp(float(torch.special.entr(weights).sum()))
    most = int(weights.argmax())
    left_out = float(1 - weights[listed_keys(walk, query, ROWS)].sum())
    others = ""
    if len(weights) > ROWS:
        others = f" {len(weights) - ROWS} further tokens share {left_out:.1%}."

    best = shown(columns[most], console)
    return (
        f"As if it looked at {alike:.1f} tokens alike; most at token {most}, {best}, with "
        f"{float(weights[most]):.0%}.{others}"
    )


def written(walk: HeadWalk, query: int) -> str:
    """What the head hands on, and what it adds to the residual stream."""
    output = float(walk.output[query].norm())
    if walk.written is None or walk.before is None:
        return f"The head hands on a vector of length {output:.3g}."

    before = float(walk.before[query].norm())
    added = float(walk.written[query].norm())
    after = float((walk.before[query] + walk.written[query]).norm())
    return (
        f"The head hands on a vector of length {output:.3g}. Projected, it has length {added:.3g}: "
        f"the residual stream goes from {before:.3g} to {after:.3g}."
    )


def guesses(row: Sequence[Guess], console: Console) -> str:
    """The likeliest tokens with their probabilities."""
    parts = [f"{guess.probability:.0%} {shown(guess.text, console)}" for guess in row[:GUESSES]]
    return ", ".join(parts)


def shown(text: str, console: Console) -> str:
    """A token in characters that the console has."""
    return fitted(text, TOKEN_WIDTH, console).rstrip() or text
