"""Parallel tokenisation: texts to arrays of token ids, in batches and with bounded memory."""

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
from qkv.text.frame_tokens import tokens_around
from qkv.text.tokenizer import Tokenizer

BATCH = 1 << 19
"""Characters encoded at once: enough to keep all cores busy, and little memory."""
TEXTS = 1 << 13
"""Texts encoded at once, however short."""
CHUNK = 1 << 14
"""Characters of a long text that one core encodes at a time."""
AT_ONCE = 2
"""Batches in flight: while one is turned into an array, the next is encoded."""
BORDER = re.compile(r"(?<=\S)\n(?=\S)")
"""Between two non-empty lines: the only border where both sides keep their tokens if cut."""

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Chunk:
    """A part of a text that is encoded by itself."""

    text: str
    begins: bool
    """True for the first chunk of its text."""
    ends: bool
    """True for the last chunk of its text."""

    def size(self) -> int:
        return len(self.text)


def split_chunks(source: TextSource, size: int | None) -> Iterator[Chunk]:
    """The texts of a source in chunks of about `size` characters, so that all cores have work."""
    begins = True
    for part in source:
        first = 0
        while size is not None and (border := BORDER.search(part.text, first + size)):
            yield Chunk(part.text[first : border.end()], begins, False)
            first = border.end()
            begins = False

        yield Chunk(part.text[first:], begins, part.ends)
        begins = part.ends


def separable(tokenizer: Tokenizer) -> bool:
    """True if two lines have the same tokens apart as together.

    It is False for a tokenizer that marks the first word of a text.
    """
    return tokenizer.encode("a b\nc d") == tokenizer.encode("a b\n") + tokenizer.encode("c d")


def batch_by_characters(
    items: Iterable[Input], size: Callable[[Input], int]
) -> Iterator[tuple[int, list[Input]]]:
    """Batches of about BATCH characters, each with its number of characters."""
    batch: list[Input] = []
    characters = 0

    for item in items:
        batch.append(item)
        characters += size(item)
        if characters >= BATCH or len(batch) >= TEXTS:
            yield characters, batch
            batch = []
            characters = 0

    if batch:
        yield characters, batch


def in_order(
    work: Callable[[list[Input]], Output], batches: Iterable[tuple[int, list[Input]]]
) -> Iterator[tuple[int, Output]]:
    """The results of batches in order, computed by threads a few batches ahead."""
    waiting: deque[tuple[int, Future[Output]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for characters, batch in batches:
            waiting.append((characters, threads.submit(work, batch)))
            if len(waiting) > AT_ONCE:
                characters, future = waiting.popleft()
                yield characters, future.result()

        for characters, future in waiting:
            yield characters, future.result()


Encoded = tuple[np.ndarray, np.ndarray]
"""The ids of texts, and the positions just after the last id of each text."""


def encoder(tokenizer: Tokenizer) -> Callable[[list[Chunk]], Encoded]:
    """A function that encodes chunks and appends the end token to every text."""
    closing = tokens_around(tokenizer, "document").after

    def encode(chunks: list[Chunk]) -> Encoded:
        rows = tokenizer.encode_batch([chunk.text for chunk in chunks])
        ends = np.zeros(len(rows), dtype=bool)
        for number, (chunk, row) in enumerate(zip(chunks, rows, strict=True)):
            if chunk.ends and (row or not chunk.begins):  # an empty text is skipped
                row.extend(closing)
                ends[number] = True

        ids, row_ends = joined(rows)

        return ids, row_ends[ends]

    return encode


def pair_encoder(
    tokenizer: Tokenizer,
) -> Callable[[list[tuple[str, str]]], tuple[Encoded, Encoded]]:
    """A function that encodes both sides of pairs."""

    def encode(pairs: list[tuple[str, str]]) -> tuple[Encoded, Encoded]:
        sources, targets = map(list, zip(*pairs, strict=True))
        return joined(tokenizer.encode_batch(sources)), joined(tokenizer.encode_batch(targets))

    return encode


def joined(rows: list[list[int]]) -> Encoded:
    """All ids in one array, and the end of each row in it."""
    ends = np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
    total = int(ends[-1]) if len(rows) else 0

    return np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=total), ends
