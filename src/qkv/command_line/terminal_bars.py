"""Bars at a terminal: progress on standard error, and probabilities of tokens and classes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from qkv.generation.fill import Guess
from qkv.insight.render.terminal_cells import bar
from qkv.tables import Table
from qkv.text.printable import printable

Advance = Callable[[int, int], None]
"""Called with the number of finished items and the number of all items."""


@contextmanager
def progress_bar(label: str, *, hidden: bool = False) -> Iterator[Advance]:
    """Show a bar on standard error while the context is open, and yield the function that moves it.

    Without a terminal, or when `hidden`, nothing is shown.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disabled = hidden or not sys.stderr.isatty()
    console = Console(stderr=True)

    with Progress(*columns, console=console, transient=True, disable=disabled) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


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
