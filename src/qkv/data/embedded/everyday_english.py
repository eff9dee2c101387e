"""The source `english`: everyday sentences of a compact grammar, and sentences to fill in.

"I took my dog for a walk", "I took my money to the bank": the words before and after a gap tell
what is missing. No sentence to fill in, with any of its answers, is in the corpus.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeVar

EnglishSplit = Literal["train", "valid"]
ENGLISH_SIZES: dict[EnglishSplit, int] = {"train": 10_000, "valid": 1_000}
GAP = "[mask]"
Choice = TypeVar("Choice")


class MaskedClue(NamedTuple):
    """A sentence with a gap."""

    text: str
    """The sentence; [mask] stands for one word."""
    answers: tuple[str, ...]
    """The words that fit."""
    clue: str
    """Where the words stand that tell the answer: before the gap, after it, or both."""


def english_texts(split: EnglishSplit = "train") -> list[str]:
    """Everyday sentences, all distinct, always the same and in the same order."""
    return list(english_corpus()[split])


def masked_clues() -> list[MaskedClue]:
    """20 sentences to fill in; the first is the lecture's.

    Returns:
        The sentences, with the words that fit.

    Example:
        >>> masked_clues()[0]
        MaskedClue(text='I took my [mask] for a walk', answers=('dog', 'puppy'), clue='after')
    """
    clues: list[MaskedClue] = []
    for row in grammar()["clues"]:
        clues.append(MaskedClue(row["text"], tuple(row["answers"]), row["clue"]))

    return clues


def clue_pairs(split: str = "test") -> list[tuple[str, str]]:
    """The sentences to fill in, each with the first word that fits."""
    return [(clue.text, clue.answers[0]) for clue in masked_clues()]


@cache
def english_corpus() -> dict[EnglishSplit, tuple[str, ...]]:
    """The sentences by split.

    Only random() is used, which gives the same numbers in every version of Python.
    """
    uniform = random.Random(0).random
    left_out: set[str] = set()
    for clue in masked_clues():
        left_out |= {clue.text.replace(GAP, answer) for answer in clue.answers}

    sentences: dict[str, None] = {}
    splits: dict[EnglishSplit, tuple[str, ...]] = {}

    for split, size in ENGLISH_SIZES.items():
        before = len(sentences)
        while len(sentences) < before + size:
            sentence = draw_sentence(uniform)
            if sentence not in left_out:
                sentences[sentence] = None

        splits[split] = tuple(sentences)[before:]

    return splits


def draw_sentence(uniform: Callable[[], float]) -> str:
    """A random sentence: half of them have no time, the others have one at either end."""
    tables = grammar()
    subject, my = choose(tables["subjects"], uniform)
    scene = choose(tables["scenes"], uniform)
    predicate = choose(scene["predicates"], uniform).replace("{my}", my)
    words = [subject, predicate.replace("*", choose(scene["words"], uniform))]

    place = uniform()
    if place < 0.2:
        words.insert(0, choose(tables["first_times"], uniform))
    elif place < 0.5:
        words.append(choose(tables["last_times"], uniform))

    return " ".join(words)


def choose(values: Sequence[Choice], uniform: Callable[[], float]) -> Choice:
    return values[int(uniform() * len(values))]


@cache
def grammar() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("everyday_english.toml").read_text("utf-8"))
