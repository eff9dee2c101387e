"""Enough of a text to learn a tokenizer from, however long the text: evenly spaced pieces that fit
in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST_PIECE = 1 << 14  # characters; the library's trainers hold 256 pieces at once
OVERHEAD = 64  # bytes that a piece costs besides its text

BETWEEN_WORDS = re.compile(r"(?<=\S)\s(?=\S)")


def cut(texts: Iterable[str]) -> Iterator[str]:
    """The texts in pieces of bounded length, cut before a space between two words where there is
    one.
    """
    for text in texts:
        start = 0
        while len(text) - start > 2 * LONGEST_PIECE:
            latest = start + 2 * LONGEST_PIECE
            space = BETWEEN_WORDS.search(text, start + LONGEST_PIECE, latest)
            stop = space.start() if space else latest
            yield text[start:stop]
            start = stop

        if start < len(text):
            yield text[start:]


def sample(pieces: Iterable[str], most: int) -> list[bytes]:
    """All pieces if they fit in `most` bytes; else every second, fourth, eighth ... of them, first
    to last.
    """
    kept: list[bytes] = []
    size, every = 0, 1

    for number, piece in enumerate(pieces):
        if number % every:
            continue

        kept.append(piece.encode())
        size += len(kept[-1]) + OVERHEAD
        while size > most and len(kept) > 1:
            del kept[1::2]
            every *= 2
            size = sum(map(len, kept)) + OVERHEAD * len(kept)

    return kept
