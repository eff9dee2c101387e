"""Sample text to train a tokenizer on: evenly spaced pieces that fit in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST_PIECE = 1 << 14
"""In characters; the library's trainers hold 256 pieces at once."""
OVERHEAD = 64
"""Bytes that a piece costs besides its text."""

BETWEEN_WORDS = re.compile(r"(?<=\S)\s(?=\S)")


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in pieces of bounded length, cut at a space between words if possible."""
    for text in texts:
        start = 0
        while len(text) - start > 2 * LONGEST_PIECE:
            stop = start + 2 * LONGEST_PIECE
            space = BETWEEN_WORDS.search(text, start + LONGEST_PIECE, stop)
            if space:
                stop = space.start()

            yield text[start:stop]
            start = stop

        if start < len(text):
            yield text[start:]


def sample(pieces: Iterable[str], most: int) -> list[bytes]:
    """Return all pieces if they fit in `most` bytes, or else every second, fourth, eighth, ..."""
    sampled: list[bytes] = []
    size = 0
    every = 1

    for number, piece in enumerate(pieces):
        if number % every:
            continue

        sampled.append(piece.encode())
        size += len(sampled[-1]) + OVERHEAD
        while size > most and len(sampled) > 1:
            del sampled[1::2]
            every *= 2
            size = sum(map(len, sampled)) + OVERHEAD * len(sampled)

    return sampled
