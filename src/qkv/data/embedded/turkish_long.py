"""Long English-Turkish sentences: one to six clauses of the grammar, joined with "and" and "ve".

"cats chase mice and the child ate an apple" / "kediler fareleri kovalar ve çocuk bir elma yedi".
The clauses of a split are those of `turkish` in the same split, so that the test split is
compositional, too. Equally many sentences have each number of clauses.
"""

from __future__ import annotations

import random
from functools import cache

from qkv.data.embedded import turkish
from qkv.data.embedded.turkish import Split

MOST_CLAUSES = 6
LONG_SIZES: dict[Split, int] = {"train": 36_000, "valid": 600, "test": 1_200}
AND = "and"
VE = "ve"


def count_clauses(english: str) -> int:
    """The number of clauses in an English sentence."""
    return english.split().count(AND) + 1


def translate_long(english: str) -> str:
    """The Turkish translation of English clauses joined with "and"."""
    clauses = english.split(f" {AND} ")
    return f" {VE} ".join(map(turkish.translate, clauses))


def alignment_long(english: str) -> list[int]:
    """The position of the English word behind each Turkish word; "ve" stands for "and"."""
    positions: list[int] = []
    first = 0

    for clause in english.split(f" {AND} "):
        if first:
            positions.append(first - 1)

        positions += [first + position for position in turkish.alignment(clause)]
        first += len(clause.split()) + 1

    return positions


@cache
def long_corpus(split: Split) -> tuple[tuple[str, str], ...]:
    """All distinct sentence pairs of a split.

    Only random() is used, which gives the same numbers in every version of Python.
    """
    clauses = turkish.pairs(split)
    uniform = random.Random(split).random
    translations: dict[str, str] = {}

    while len(translations) < LONG_SIZES[split]:
        chosen: dict[str, str] = {}
        while len(chosen) <= len(translations) % MOST_CLAUSES:
            english, translation = clauses[int(uniform() * len(clauses))]
            chosen[english] = translation

        translations[f" {AND} ".join(chosen)] = f" {VE} ".join(chosen.values())

    return tuple(translations.items())


def long_pairs(split: Split = "train") -> list[tuple[str, str]]:
    """English and Turkish sentences of one to six clauses, always the same."""
    return list(long_corpus(split))
