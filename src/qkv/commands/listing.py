"""A name and what it is, as a list of commands shows them."""

from __future__ import annotations

import shutil
import textwrap


def listed(name: str, summary: str) -> str:
    """In the width of the terminal, at most 100 columns."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(" ".join(summary.split()), width - 15, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"  {name if number == 0 else '':12} {line}" for number, line in enumerate(lines))
