"""Word pairs for few-shot prompts: antonyms, plurals, capitals and French words."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Literal, get_args

WordList = Literal["antonyms", "plurals", "capitals", "french"]
WORD_LISTS: tuple[WordList, ...] = get_args(WordList)
WordSplit = Literal["train", "valid", "all"]
WORD_SPLITS: tuple[WordSplit, ...] = get_args(WordSplit)
EVERY = 5
"""One pair in so many is held out for validation."""


def word_pairs(name: WordList, split: WordSplit = "all") -> list[tuple[str, str]]:
    """Questions and answers, in lower case; no question occurs twice.

    Args:
        name: "antonyms" (120 pairs), "plurals", "capitals" or "french" (60 each). The first three
            pairs of "french" are the lecture's examples, and its question, "cheese", is the fifth.
        split: "all", "valid" (every fifth pair) or "train" (the others).

    Returns:
        The pairs, always in the same order.

    Raises:
        ValueError: If the name or the split is unknown.

    Example:
        >>> word_pairs("french")[0]
        ('sea otter', 'loutre de mer')
    """
    for kind, value, known in (("name", name, WORD_LISTS), ("split", split, WORD_SPLITS)):
        if value not in known:
            raise ValueError(f"{kind}: expected one of {', '.join(known)}, not {value!r}")

    chosen: list[tuple[str, str]] = []
    for number, (question, answer) in enumerate(tables()[name]):
        is_held_out = number % EVERY == EVERY - 1
        if split == "all" or is_held_out == (split == "valid"):
            chosen.append((question, answer))

    return chosen


def slide_examples() -> list[tuple[str, str]]:
    """The three examples on the lecture's slide on few-shot prompts, in its order."""
    return word_pairs("french")[:3]


@cache
def tables() -> dict[str, list[list[str]]]:
    return tomllib.loads(files(__package__).joinpath("word_pairs.toml").read_text("utf-8"))


READERS: dict[str, Callable[[WordSplit], list[tuple[str, str]]]] = {
    name: partial(word_pairs, name) for name in WORD_LISTS
}
"""The functions that read each list, by the name of the source."""
