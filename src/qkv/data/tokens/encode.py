"""From texts to arrays of ids: batch after batch, all cores at work and little in memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from qkv.data.sources.source import TextSource
from qkv.text.tokenizer import Tokenizer

BATCH = 1 << 19
"""Characters encoded at once: enough to keep all cores busy, little enough for the memory."""
TEXTS = 1 << 13
"""Texts encoded at once, however short."""
CHUNK = 1 << 14
"""Characters of a long text that one core encodes at a time."""
AT_ONCE = 2
"""Batches in work: while one is turned into an array, the other is encoded."""

# Between two full lines; nowhere else do the tokens of the two sides stay what they are in the
# whole.
BORDER = re.compile(r"(?<=\S)\n(?=\S)")

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Chunk:
    """A part of a text that is encoded by itself."""

    text: str
    begins: bool
    """It is its text's first."""
    ends: bool
    """It is its text's last."""

    def size(self) -> int:
        return len(self.text)


def chunks(source: TextSource, size: int | None) -> Iterator[Chunk]:
    """Long pieces of text are cut further, so that all cores have work and none much memory."""
    begins = True
    for piece in source:
        first = 0
        while size is not None and (border := BORDER.search(piece.text, first + size)):
            yield Chunk(piece.text[first : border.end()], begins, False)
            first, begins = border.end(), False

        yield Chunk(piece.text[first:], begins, piece.ends)
        begins = piece.ends


def separable(tokenizer: Tokenizer) -> bool:
    """Whether two lines give the same tokens apart as together; not so where a text's first word is
    marked.
    """
    return tokenizer.encode("a b\nc d") == tokenizer.encode("a b\n") + tokenizer.encode("c d")


def batches(
    items: Iterable[Given], size: Callable[[Given], int]
) -> Iterator[tuple[int, list[Given]]]:
    """Items up to about BATCH characters together, and how many characters they have."""
    batch: list[Given] = []
    characters = 0

    for item in items:
        batch.append(item)
        characters += size(item)
        if characters >= BATCH or len(batch) >= TEXTS:
            yield characters, batch
            batch, characters = [], 0

    if batch:
        yield characters, batch


def in_order(
    work: Callable[[list[Given]], Made], batches: Iterable[tuple[int, list[Given]]]
) -> Iterator[tuple[int, Made]]:
    """The batches done by threads, a few ahead of the one that is given out."""
    waiting: deque[tuple[int, Future[Made]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for characters, batch in batches:
            waiting.append((characters, threads.submit(work, batch)))
            if len(waiting) > AT_ONCE:
                characters, done = waiting.popleft()
                yield characters, done.result()

        for characters, done in waiting:
            yield characters, done.result()


Encoded = tuple[np.ndarray, np.ndarray]
"""Ids, and just after which of them a text ends."""


def encoder(tokenizer: Tokenizer) -> Callable[[list[Chunk]], Encoded]:
    closing = [] if tokenizer.end is None else [tokenizer.end]

    def encode(chunks: list[Chunk]) -> Encoded:
        rows = tokenizer.encode_batch([chunk.text for chunk in chunks])
        ends = np.zeros(len(rows), dtype=bool)
        for number, (chunk, row) in enumerate(zip(chunks, rows, strict=True)):
            if chunk.ends and (row or not chunk.begins):  # an empty text is none
                row.extend(closing)
                ends[number] = True

        ids, lengths = joined(rows)

        return ids, np.cumsum(lengths)[ends]

    return encode


def pair_encoder(
    tokenizer: Tokenizer,
) -> Callable[[list[tuple[str, str]]], tuple[Encoded, Encoded]]:
    def encode(pairs: list[tuple[str, str]]) -> tuple[Encoded, Encoded]:
        sources, source_lengths = joined(tokenizer.encode_batch([source for source, _ in pairs]))
        targets, target_lengths = joined(tokenizer.encode_batch([target for _, target in pairs]))
        return (sources, np.cumsum(source_lengths)), (targets, np.cumsum(target_lengths))

    return encode


def joined(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return np.fromiter(
        chain.from_iterable(rows), dtype=np.uint32, count=int(lengths.sum())
    ), lengths
