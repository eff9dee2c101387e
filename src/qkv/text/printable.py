"""Untrusted text made safe for a terminal or a picture: no control characters, one line."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

# Control characters move a terminal's cursor or change its colours, directional marks reorder what
# is displayed, line separators start a line, and surrogates cannot be encoded.
COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """Return the text with � in place of characters that would control a terminal."""
    return COMMANDS.sub("\ufffd", text)


def in_one_line(text: str) -> str:
    """Return the printable text with every run of white space as one space."""
    return printable(" ".join(text.split()))


def shortened(text: str, longest: int) -> str:
    """Return the text in one line of at most `longest` terminal cells; a CJK character is two."""
    text = in_one_line(text)
    if cell_len(text) <= longest:
        return text

    return set_cell_size(text, longest - 1) + "…"
