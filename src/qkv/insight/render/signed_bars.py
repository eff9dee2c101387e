"""Signed numbers with names, as bars in the terminal: to the right above 0, to the left below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from qkv.insight.render.terminal_cells import bar, fitted, has_blocks, widest

LONGEST_NAME = 34
LONGEST_BAR = 30


def show_signed_bars(values: Sequence[tuple[str, float]], console: Console) -> None:
    """Print a line for each value: its name, its number and a bar.

    Args:
        values: Names and numbers.
        console: The console.
    """
    names = [name for name, _ in values]
    width = min(LONGEST_NAME, widest(names))
    numbers = [f"{value:+.3f}" for _, value in values]
    digits = max(map(len, numbers), default=0)
    largest = max((abs(value) for _, value in values), default=0.0) or 1.0
    length = max(4, min(LONGEST_BAR, console.width - width - digits - 4))

    for (name, value), number in zip(values, numbers, strict=True):
        line = Text(fitted(name, width, console), no_wrap=True, overflow="crop")
        line.append(f"  {number:>{digits}} ")
        style = "red" if value < 0 else "cyan"
        line.append(bar(abs(value) / largest, length, has_blocks(console)), style=style)
        console.print(line)
