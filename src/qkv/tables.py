"""Tables for the terminal that keep names and numbers whole when the window is narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Column
from rich.table import Table as RichTable

__all__ = ["Column", "Table"]

UNLIMITED = 10_000
"""Columns that are more than any cell needs."""


class Table(RichTable):
    """A rich table whose columns of text become narrower before those of names and numbers.

    rich narrows the widest column, even if that breaks a name while other columns have spaces.
    """

    @classmethod
    def grid(cls, *headers: Any, **options: Any) -> Table:
        """A table without borders; the options are those of rich."""
        table = super().grid(*headers, **options)
        assert isinstance(table, cls)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        for column in self.columns:
            if column.overflow == "ellipsis":
                column.overflow = "fold"

        if self.box is not None and self.columns:
            self.fit(console, options)

        yield from super().__rich_console__(console, options)

    def fit(self, console: Console, options: ConsoleOptions) -> None:
        """Set the column widths of a table that is too wide; only the longest words are broken."""
        borders = 3 * len(self.columns) + 1  # a line and two spaces per column
        available = options.max_width - borders
        least = []
        widths = []

        for number in range(len(self.columns)):
            word, line = self.measure(console, options, number)
            least.append(word)
            widths.append(line)

        if sum(widths) <= available:
            return

        # Break the longest words if all of them together are too wide.
        words = list(least)
        cap = max(words)
        while cap > 1 and sum(least) > available:
            cap -= 1
            least = [min(word, cap) for word in words]

        # Narrow the widest column that can be narrowed, one step at a time.
        while sum(widths) > max(available, sum(least)):
            narrowable = [n for n in range(len(widths)) if widths[n] > least[n]]
            widest = max(narrowable, key=widths.__getitem__)
            widths[widest] -= 1

        for column, width, word in zip(self.columns, widths, words, strict=True):
            column.width = width
            column.no_wrap = column.no_wrap and width >= word

    def measure(self, console: Console, options: ConsoleOptions, number: int) -> tuple[int, int]:
        """The widths of a column's longest word and longest line; the same if it does not wrap."""
        column = self.columns[number]
        word = 0
        line = 0
        unlimited = options.update(max_width=UNLIMITED)

        for cell in (column.header, column.footer, *column.cells):
            if cell != "":
                size = Measurement.get(console, unlimited, cell)
                word = max(word, size.minimum)
                line = max(line, size.maximum)

        if column.no_wrap:
            return line, line

        return word, line
