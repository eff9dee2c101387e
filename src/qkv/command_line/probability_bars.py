"""Texts with their probabilities, as a bar each: for `qkv fill` and `qkv classify`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from qkv.generation.fill import Guess
from qkv.insight.render.terminal_cells import bar
from qkv.tables import Table
from qkv.text.printable import printable


def probability_bars(guesses: Iterable[Guess]) -> Table:
    """A table without borders: text, probability, bar."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(no_wrap=True)

    for guess in guesses:
        probability = f"{guess.probability:.1%}"
        filled = Text(bar(guess.probability), style="cyan")
        table.add_row(Text(printable(guess.text)), probability, filled)

    return table
