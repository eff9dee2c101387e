"""CoNLL-U: sentences of words with part of speech and dependency head, one word per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from qkv.data.sources.files import File
from qkv.data.sources.lines import read_lines

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")
"""Ids of multiword tokens (1-2, such as don't) and empty nodes (3.1), which are skipped."""


class ConlluWord(NamedTuple):
    """The ten columns of a word, and its line in the file."""

    id: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int | None
    """The id of the word's head, 0 for the root; None if it is not annotated."""
    deprel: str
    deps: str
    misc: str
    line: int


class ConlluSentence(NamedTuple):
    """The words of a sentence, and its comments."""

    words: tuple[ConlluWord, ...]
    comments: tuple[str, ...]
    """The comment lines above the sentence, with their #."""

    @property
    def line(self) -> int:
        """The line of the first word."""
        return self.words[0].line


def read_sentences(file: File) -> Iterator[ConlluSentence]:
    """The sentences of a file; an empty line ends each."""
    words: list[ConlluWord] = []
    comments: list[str] = []

    for number, line in read_lines(file):
        if not line.strip():
            if words:
                yield ConlluSentence(tuple(words), tuple(comments))

            words = []
            comments = []
            continue

        if line.startswith("#"):
            comments.append(line)
            continue

        word = read_word(line, number, file.at(number))
        if word is None:
            continue

        if word.id != len(words) + 1:
            raise ValueError(
                f"{file.at(number)}: expected word {len(words) + 1} of the sentence, "
                f"not {word.id}; an empty line ends a sentence"
            )

        words.append(word)

    if words:
        yield ConlluSentence(tuple(words), tuple(comments))


def read_word(line: str, number: int, where: str) -> ConlluWord | None:
    """The word of a line; None for multiword tokens and empty nodes."""
    columns = line.split("\t")
    if len(columns) != len(COLUMNS):
        count = f"{len(columns)} columns" if len(columns) != 1 else "1 column"
        raise ValueError(f"{where}: {count}, expected ten with tabs between them, as CoNLL-U has")

    id, form, lemma, upos, xpos, feats, head, deprel, deps, misc = columns
    if NO_WORD.fullmatch(id):
        return None
    if not is_number(id):
        raise ValueError(f"{where}: the first column: expected the word's number, not {id!r}")
    if not form.strip():
        raise ValueError(f"{where}: the word is empty")
    if head != "_" and not is_number(head):
        raise ValueError(
            f"{where}: the seventh column: expected the number of a word, 0 or _, not {head!r}"
        )

    head_id = None if head == "_" else int(head)

    return ConlluWord(int(id), form, lemma, upos, xpos, feats, head_id, deprel, deps, misc, number)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
