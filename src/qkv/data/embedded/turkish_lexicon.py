"""The lexicon of the English-Turkish grammar: nouns, verbs and adjectives.

Every verb takes its object in the accusative in Turkish, and no English form belongs to two words
or two tenses: an English sentence has exactly one translation.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Literal, NamedTuple

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


def classes(value: str | list[Class]) -> tuple[Class, ...]:
    """A group of classes by name, or the classes themselves."""
    if isinstance(value, str):
        value = TABLES["classes"][value]

    return tuple(value)


TABLES = tomllib.loads(files(__package__).joinpath("turkish_lexicon.toml").read_text("utf-8"))
NOUNS = tuple(Noun(*row) for row in TABLES["words"]["nouns"])
VERBS = tuple(
    Verb(*row[:4], classes(row[4]), classes(row[5]), *row[6:]) for row in TABLES["words"]["verbs"]
)
ADJECTIVES = tuple(Adjective(*row[:2], classes(row[2])) for row in TABLES["words"]["adjectives"])
