"""The lexicon of the English-Turkish grammar: nouns, verbs and adjectives.

Every verb takes its object in the accusative in Turkish, and no English form belongs to two words
or two tenses: an English sentence has exactly one translation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Literal, NamedTuple

Class = Literal["person", "animal", "food", "thing"]


class Noun(NamedTuple):
    """A noun in both languages, with the class that verbs and adjectives select."""

    english: str
    plural: str
    turkish: str
    kind: Class
    softens: bool = False
    """True if its last consonant becomes voiced before a vowel: köpek, köpeği."""


class Verb(NamedTuple):
    """A verb in both languages, with the classes of its subjects and objects."""

    english: str
    third: str
    past: str
    turkish: str
    subjects: tuple[Class, ...]
    objects: tuple[Class, ...]
    indefinite: bool
    """True if its object can be indefinite, without the accusative: bir fare gördü."""
    softens: bool = False


class Adjective(NamedTuple):
    """An adjective in both languages, with the classes of the nouns it goes with."""

    english: str
    turkish: str
    kinds: tuple[Class, ...]


TABLES = tomllib.loads(files(__package__).joinpath("turkish_lexicon.toml").read_text("utf-8"))


def rows(words: str, *groups: int) -> Iterator[list[Any]]:
    """The rows of a table; in these columns the name of a group stands for its classes."""
    for row in TABLES["words"][words]:
        for column in groups:
            row[column] = tuple(TABLES["classes"].get(str(row[column]), row[column]))

        yield row


NOUNS = tuple(Noun(*row) for row in rows("nouns"))
VERBS = tuple(Verb(*row) for row in rows("verbs", 4, 5))
ADJECTIVES = tuple(Adjective(*row) for row in rows("adjectives", 2))
