"""A text that someone else wrote, as a terminal or a picture may show it."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

# They move a terminal's cursor or change its colours; turn the direction of what is read, so that
# it says something else; begin a line; or are no signs at all, and so cannot be written.
COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """For a terminal or a picture: signs that would command it are shown as �, all others as they
    are.
    """
    return COMMANDS.sub("\ufffd", text)


def in_one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def shortened(text: str, longest: int) -> str:
    """In one line, and no wider than there is room; a Chinese sign is as wide as two letters."""
    text = in_one_line(text)
    return text if cell_len(text) <= longest else set_cell_size(text, longest - 1) + "…"
