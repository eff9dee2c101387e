"""Sentences with a marked word: the same word as noun or verb, and in two meanings."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

PUNCTUATION = ".,?!"
WORD_MARK = "*"
CUE_MARK = "_"


@dataclass(frozen=True)
class MarkedWord:
    """A sentence with a word that is a noun or a verb."""

    text: str
    index: int
    """The position of the word in `text.split()`."""
    word: str
    part_of_speech: str
    """Either noun or verb."""


@dataclass(frozen=True)
class WordSense:
    """A sentence with a word that has several meanings."""

    text: str
    index: int
    """The position of the word in `text.split()`."""
    word: str
    meaning: str
    cue: int
    """The position of the word that tells the meaning."""


def part_of_speech_sentences() -> list[MarkedWord]:
    """60 sentences with ten words such as "run", each three times as noun and as verb.

    Returns:
        The sentences, always in the same order; the word has the same form in both uses.

    Example:
        >>> sentence = part_of_speech_sentences()[0]
        >>> sentence.text, sentence.index, sentence.part_of_speech
        ('She goes for a run before breakfast.', 4, 'noun')
    """
    sentences: list[MarkedWord] = []
    for word, uses in tables()["parts_of_speech"].items():
        for part_of_speech, texts in uses.items():
            for marked in texts:
                text, index, _ = unmark(marked)
                sentences.append(MarkedWord(text, index, word, part_of_speech))

    return sentences


def sense_sentences() -> list[WordSense]:
    """160 sentences with eight words such as "bank", ten for each of two meanings.

    Returns:
        The sentences, always in the same order.

    Example:
        >>> sentence = sense_sentences()[0]
        >>> sentence.meaning, sentence.text.split()[sentence.cue]
        ('money', 'account')
    """
    sentences: list[WordSense] = []
    for word, meanings in tables()["senses"].items():
        for meaning, texts in meanings.items():
            for marked in texts:
                text, index, cue = unmark(marked)
                sentences.append(WordSense(text, index, word, meaning, cue))

    return sentences


def agent_sentences() -> list[WordSense]:
    """30 sentences in which somebody goes for a run, takes a walk ...: who does it is marked.

    Returns:
        The sentences, always in the same order; `cue` is the position of who does it.

    Example:
        >>> sentence = agent_sentences()[0]
        >>> sentence.text, sentence.text.split()[sentence.cue]
        ('I went for a run.', 'I')
    """
    sentences: list[WordSense] = []
    for word, texts in tables()["agents"].items():
        for marked in texts:
            text, index, cue = unmark(marked)
            sentences.append(WordSense(text, index, word, "agent", cue))

    return sentences


def labelled_words(split: str = "train") -> list[tuple[str, str]]:
    """The sentences with noun or verb as labels; every fifth is in the split valid."""
    rows = [(sentence.text, sentence.part_of_speech) for sentence in part_of_speech_sentences()]
    return part_of(rows, split)


def labelled_senses(split: str = "train") -> list[tuple[str, str]]:
    """The sentences with word and meaning as labels; every fifth is in the split valid."""
    rows = [(one.text, f"{one.word}: {one.meaning}") for one in sense_sentences()]
    return part_of(rows, split)


def part_of(rows: list[tuple[str, str]], split: str) -> list[tuple[str, str]]:
    """Every fifth row for valid, the others for train."""
    chosen = []
    for number, row in enumerate(rows):
        if (number % 5 == 4) == (split == "valid"):
            chosen.append(row)

    return chosen


def unmark(marked: str) -> tuple[str, int, int]:
    """The text without marks, and the positions of the word and of its cue (-1 without a cue)."""
    words: list[str] = []
    index = cue = -1

    for position, word in enumerate(marked.split()):
        if word.startswith(WORD_MARK):
            index = position
        elif word.startswith(CUE_MARK):
            cue = position

        words.append(word.replace(WORD_MARK, "").replace(CUE_MARK, ""))

    return " ".join(words), index, cue


@cache
def tables() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("word_senses.toml").read_text("utf-8"))
