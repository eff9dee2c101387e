"""Long sentences: clauses of the grammar, joined, with translation and alignment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from qkv.data import open_pairs
from qkv.data.embedded import turkish
from qkv.data.embedded.turkish_long import (
    alignment_long,
    count_clauses,
    long_pairs,
    translate_long,
)


def test_a_sentence_written_down_by_hand() -> None:
    english = "cats chase mice and the child ate an apple and a dog will bite the king"
    assert translate_long(english) == (
        "kediler fareleri kovalar ve çocuk bir elma yedi ve bir köpek kralı ısıracak"
    )
    # kediler fareleri kovalar ve çocuk bir elma yedi ve bir köpek kralı ısıracak
    assert alignment_long(english) == [0, 2, 1, 3, 5, 7, 8, 6, 9, 10, 11, 15, 13]
    assert count_clauses(english) == 3


@pytest.mark.parametrize(("split", "size"), [("train", 36_000), ("valid", 600), ("test", 1_200)])
def test_each_number_of_clauses_is_equally_frequent(split: Any, size: int) -> None:
    pairs = list(open_pairs([f"turkish-long:{split}"]))
    assert pairs == long_pairs(split)
    assert len({english for english, _ in pairs}) == size

    counts = Counter(count_clauses(english) for english, _ in pairs)
    assert counts == dict.fromkeys(range(1, 7), size // 6)


def test_clauses_are_those_of_the_same_split_with_their_translations() -> None:
    for split in ("train", "valid", "test"):
        translations = dict(turkish.pairs(split))
        for english, target in long_pairs(split)[:600]:
            clauses = english.split(" and ")
            assert len(set(clauses)) == len(clauses)
            assert [translations[clause] for clause in clauses] == target.split(" ve ")


def test_translation_and_alignment_agree_with_the_corpus() -> None:
    for english, target in long_pairs("test")[:300]:
        assert translate_long(english) == target
        positions = alignment_long(english)
        words = english.split()
        assert len(positions) == len(target.split()) == len(set(positions))
        for word, position in zip(target.split(), positions, strict=True):
            assert (word == "ve") == (words[position] == "and")
