"""Synthetic texts of letters: `copy`, `reverse`, `lookups`, `back` and `random`.

A token is a letter, and blanks separate tokens, so `--tokenizer words` gives one id per letter. The
items of a split are always the same. synthetic_batches.py makes the same tasks as tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from string import ascii_lowercase
from typing import Literal

Split = Literal["train", "valid", "test"]
SIZES: dict[Split, int] = {"train": 20_000, "valid": 500, "test": 500}
SHORTEST = 4
"""Tokens of the shortest sequence to copy or to reverse."""
LONGEST = 12
BACK_DISTANCE = 8
"""In `back`, every token equals the token this many positions before it."""
LOOKUPS = (1, 3, 5, 7)
"""In `lookups`, the answers stand this many positions before the last token."""
TEXT_LENGTH = 32
"""Tokens of a text of `back` and of `random`."""


def copy_pairs(split: Split = "train") -> Iterator[tuple[str, str]]:
    """Random letters and the same letters: "d k a q", "d k a q"."""
    for letters in sequences()[split]:
        text = " ".join(letters)
        yield text, text


def reverse_pairs(split: Split = "train") -> Iterator[tuple[str, str]]:
    """Random letters and the same letters in reverse order: "d k a q", "q a k d"."""
    for letters in sequences()[split]:
        yield " ".join(letters), " ".join(reversed(letters))


def lookups_pairs(split: Split = "train") -> Iterator[tuple[str, str]]:
    """Random letters, and four of them: those 1, 3, 5 and 7 positions before the last one.

    "b x d k a q z m", "z a d b"
    """
    for letters in long_sequences()[split]:
        yield " ".join(letters), " ".join(letters[-1 - distance] for distance in LOOKUPS)


def back_texts(split: Split = "train") -> Iterator[str]:
    """Texts of period 8: the next token is known from the ninth on, by one lookup 8 back.

    In terms of the position that predicts, the answer stands 7 positions before it.
    """
    for block in blocks()[split]:
        repeated = block * (TEXT_LENGTH // BACK_DISTANCE)
        yield " ".join(repeated)


def random_texts(split: Split = "train") -> Iterator[str]:
    """Texts of random letters, whose next token nobody can know: log 26 nats at best."""
    for letters in random_letters()[split]:
        yield " ".join(letters)


# Sequences of letters


@cache
def sequences() -> dict[Split, tuple[str, ...]]:
    """Random letters of varying length, by split."""
    return distinct(seed=0, shortest=SHORTEST, longest=LONGEST)


@cache
def long_sequences() -> dict[Split, tuple[str, ...]]:
    """Random letters that are long enough for every lookup, by split."""
    return distinct(seed=3, shortest=max(LOOKUPS) + 1, longest=LONGEST)


@cache
def blocks() -> dict[Split, tuple[str, ...]]:
    """The periods of `back`, by split."""
    return distinct(seed=1, shortest=BACK_DISTANCE, longest=BACK_DISTANCE)


@cache
def random_letters() -> dict[Split, tuple[str, ...]]:
    """The letters of `random`, by split."""
    return distinct(seed=2, shortest=TEXT_LENGTH, longest=TEXT_LENGTH)


def distinct(seed: int, shortest: int, longest: int) -> dict[Split, tuple[str, ...]]:
    """Sequences of random letters, all distinct, also between the splits.

    Only random() is used, which gives the same numbers in every version of Python.
    """
    uniform = random.Random(seed).random
    seen: dict[str, None] = {}
    splits: dict[Split, tuple[str, ...]] = {}

    for split, size in SIZES.items():
        before = len(seen)
        while len(seen) < before + size:
            length = shortest + int(uniform() * (longest - shortest + 1))
            seen[draw_letters(uniform, length)] = None

        splits[split] = tuple(seen)[before:]

    return splits


def draw_letters(uniform: Callable[[], float], length: int) -> str:
    letters: list[str] = []
    for _ in range(length):
        letters.append(ascii_lowercase[int(uniform() * len(ascii_lowercase))])

    return "".join(letters)
