"""CoNLL-U: sentences of words, each with its part of speech and the word it hangs on. One word a
line, ten columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from qkv.data.sources.files import File
from qkv.data.sources.lines import lines

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")
"""1-2 is the spelling of two words (don't = do + n't), and 3.1 a word that was left unsaid: neither
is a word here.
"""


class ConlluWord(NamedTuple):
    """The ten columns, and the line they stand in."""

    id: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int | None
    """The id of the word that this one hangs on, 0 for the root; None where nobody said."""
    deprel: str
    deps: str
    misc: str
    line: int


class ConlluSentence(NamedTuple):
    words: tuple[ConlluWord, ...]
    comments: tuple[str, ...]
    """The lines above it, with their #."""

    @property
    def line(self) -> int:
        """Of the first word."""
        return self.words[0].line


def read_sentences(file: File) -> Iterator[ConlluSentence]:
    """Sentences end at an empty line; comments that belong to none are left out."""
    words: list[ConlluWord] = []
    comments: list[str] = []

    for number, line in lines(file):
        if not line.strip():
            if words:
                yield ConlluSentence(tuple(words), tuple(comments))

            words, comments = [], []
        elif line.startswith("#"):
            comments.append(line)
        elif (word := read_word(line, number, file.at(number))) is not None:
            if word.id != len(words) + 1:
                raise ValueError(
                    f"{file.at(number)}: expected word {len(words) + 1} of the sentence, not {word.id}; "
                    "an empty line ends a sentence"
                )

            words.append(word)

    if words:
        yield ConlluSentence(tuple(words), tuple(comments))


def read_word(line: str, number: int, where: str) -> ConlluWord | None:
    columns = line.split("\t")
    if len(columns) != len(COLUMNS):
        found = f"{len(columns)} column{'' if len(columns) == 1 else 's'}"
        raise ValueError(f"{where}: {found}, expected ten with tabs between them, as CoNLL-U has")

    id, form, lemma, upos, xpos, feats, head, deprel, deps, misc = columns
    if NO_WORD.fullmatch(id):
        return None
    if not (id.isascii() and id.isdigit()):
        raise ValueError(f"{where}: the first column: expected the word's number, not {id!r}")
    if not form.strip():
        raise ValueError(f"{where}: the word is empty")
    if head != "_" and not (head.isascii() and head.isdigit()):
        raise ValueError(
            f"{where}: the seventh column: expected the number of a word, 0 or _, not {head!r}"
        )

    hangs_on = None if head == "_" else int(head)

    return ConlluWord(int(id), form, lemma, upos, xpos, feats, hangs_on, deprel, deps, misc, number)
