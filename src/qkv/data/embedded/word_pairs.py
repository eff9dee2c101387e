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
"""Every fifth pair is held out for validation."""
HELD_OUT: dict[WordSplit, tuple[bool, ...]] = {
    "train": (False,),
    "valid": (True,),
    "all": (False, True),
}
"""Whether the pairs of a split are held out."""


def word_pairs(name: WordList, split: WordSplit = "all") -> list[tuple[str, str]]:
    """Questions and answers, in lower case; no question occurs twice.

    Args:
        name: "antonyms" (120 pairs), "plurals", "capitals" or "french" (60 each). The first three
            pairs of "french" are the lecture's examples, and its question, "cheese", is the fifth.
        split: "all", "valid" (every fifth pair) or "train" (the others).

    Returns:
        The pairs, always in the same order.

    Raises:
        KeyError: If the name or the split is unknown.

    Example:
        >>> word_pairs("french")[0]
        ('sea otter', 'loutre de mer')
    """
    wanted = HELD_OUT[split]
    chosen: list[tuple[str, str]] = []
    for number, (question, answer) in enumerate(tables()[name]):
        if (number % EVERY == EVERY - 1) in wanted:
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
