"""Progress bars on standard error, shown only at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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

    with Progress(*columns, console=console, transient=True, disable=disabled) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
