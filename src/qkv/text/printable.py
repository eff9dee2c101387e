"""A text that someone else wrote, as a terminal may show it."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

COMMANDS_OF_TERMINALS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """For a terminal: signs that would move its cursor or change its colours are shown as �."""
    return COMMANDS_OF_TERMINALS.sub("\ufffd", text)


def shortened(text: str, longest: int) -> str:
    """In one line, and no wider than there is room; a Chinese sign is as wide as two letters."""
    text = printable(" ".join(text.split()))
    return text if cell_len(text) <= longest else set_cell_size(text, longest - 1) + "…"
