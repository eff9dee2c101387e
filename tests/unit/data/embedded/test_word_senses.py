"""Marked words: counts, balance, positions, and no sentence twice."""

from __future__ import annotations

from collections import Counter

import pytest

from qkv.data import open_examples
from qkv.data.embedded.word_senses import (
    PUNCTUATION,
    part_of_speech_sentences,
    sense_sentences,
    unmark,
)


def plain_words(text: str) -> list[str]:
    return [word.strip(PUNCTUATION).lower() for word in text.split()]


def test_marks_are_taken_out() -> None:
    assert unmark("The *bank* lent _money_, gladly.") == ("The bank lent money, gladly.", 1, 3)
    assert unmark("We *run*.") == ("We run.", 1, -1)


def test_the_index_is_the_position_of_the_only_such_word() -> None:
    for sentence in [*part_of_speech_sentences(), *sense_sentences()]:
        words = plain_words(sentence.text)
        assert [position for position, word in enumerate(words) if word == sentence.word] == [
            sentence.index
        ]
        assert not set("*_") & set(sentence.text)


def test_no_sentence_occurs_twice() -> None:
    texts = [sentence.text for sentence in [*part_of_speech_sentences(), *sense_sentences()]]
    assert len(texts) == len(set(texts)) == 220


def test_each_word_is_as_often_noun_as_verb() -> None:
    sentences = part_of_speech_sentences()
    counts = Counter((sentence.word, sentence.part_of_speech) for sentence in sentences)
    assert len(sentences) == 60
    assert len(counts) == 20
    assert set(counts.values()) == {3}


@pytest.mark.parametrize("part_of_speech", ["noun", "verb"])
def test_the_position_varies(part_of_speech: str) -> None:
    counts = Counter(
        sentence.index
        for sentence in part_of_speech_sentences()
        if sentence.part_of_speech == part_of_speech
    )
    assert len(counts) >= 5
    assert max(counts.values()) <= 10


def test_eight_words_have_two_meanings_with_ten_sentences_each() -> None:
    counts = Counter((sentence.word, sentence.meaning) for sentence in sense_sentences())
    assert len({word for word, _ in counts}) == 8
    assert len(counts) == 16
    assert set(counts.values()) == {10}


def test_the_cue_is_another_word_on_either_side_and_differs_by_sentence() -> None:
    cues = []
    before = 0
    for sentence in sense_sentences():
        assert 0 <= sentence.cue < len(sentence.text.split())
        assert sentence.cue != sentence.index
        before += sentence.cue < sentence.index
        cues.append((sentence.word, plain_words(sentence.text)[sentence.cue]))

    assert len(set(cues)) == 160
    assert 60 <= before <= 100


def test_marked_words_are_labelled_data_by_name() -> None:
    for name, rows, labels in (("labels-run", 60, 2), ("labels-senses", 160, 16)):
        parts = {}
        for split in ("train", "valid"):
            parts[split] = list(open_examples([f"{name}:{split}"], "classify"))

        texts = [example.texts for part in parts.values() for example in part]
        assert len(set(texts)) == len(texts) == rows
        assert len({example.label for example in parts["valid"]}) == labels
