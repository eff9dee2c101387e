"""Tables that keep words whole: rich narrows the widest column, even where that cuts a name and
others have spaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table as RichTable


class Table(RichTable):
    """Columns of text become narrower before names and numbers do; what cannot fit goes on in the
    next line, uncut.
    """

    @classmethod
    def grid(cls, *headers: Any, **options: Any) -> Table:
        """Columns without borders."""
        made = super().grid(*headers, **options)
        assert isinstance(made, cls)
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        for column in self.columns:
            column.overflow = "fold" if column.overflow == "ellipsis" else column.overflow

        if self.box is not None and self.columns:
            self.fit(console, options)

        yield from super().__rich_console__(console, options)

    def fit(self, console: Console, options: ConsoleOptions) -> None:
        """Set the widths of a table that is too wide: words stay whole; if they cannot, only the
        longest are broken.
        """
        room = (
            options.max_width - 3 * len(self.columns) - 1
        )  # borders, and a space on both sides of a cell
        measured = [self.measure(console, options, place) for place in range(len(self.columns))]
        if sum(wide for _, wide in measured) <= room:
            return

        longest = max(narrow for narrow, _ in measured)
        caps = range(longest, 0, -1)
        cap = next(
            (cap for cap in caps if sum(min(narrow, cap) for narrow, _ in measured) <= room), 1
        )
        least = [min(narrow, cap) for narrow, _ in measured]
        widths = [wide for _, wide in measured]

        while sum(widths) > max(room, sum(least)):  # the widest gives way, as long as it can
            can = [place for place, width in enumerate(widths) if width > least[place]]
            widths[max(can, key=widths.__getitem__)] -= 1

        for column, width, (narrow, _) in zip(self.columns, widths, measured, strict=True):
            column.width, column.no_wrap = width, column.no_wrap and width >= narrow

    def measure(self, console: Console, options: ConsoleOptions, place: int) -> tuple[int, int]:
        """The longest word and the longest line of a column; the same, where lines may not be
        broken.
        """
        column = self.columns[place]
        cells = [column.header, column.footer, *column.cells]
        sizes = [
            Measurement.get(console, options.update(max_width=10_000), cell)
            for cell in cells
            if cell != ""
        ]
        wide = max((size.maximum for size in sizes), default=0)

        return (wide if column.no_wrap else max((size.minimum for size in sizes), default=0)), wide
