"""An English-Turkish grammar: "cats chase mice" / "kediler fareleri kovalar".

Turkish puts the verb last, marks a definite object by the accusative, and says "not", "will" and
the plural by endings whose vowels follow the last vowel of the word. The test split is
compositional: none of its nouns stands with its verb anywhere in training, though every word form
does occur there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle, product
from typing import Literal, NamedTuple

from qkv.data.embedded.turkish_lexicon import ADJECTIVES, NOUNS, VERBS, Adjective, Noun, Verb

Split = Literal["train", "valid", "test"]
Tense = Literal["present", "past", "future"]
TENSES: tuple[Tense, ...] = ("present", "past", "future")
ARTICLES: tuple[tuple[Literal["the", "a", ""], bool], ...] = (
    ("the", False),
    ("a", False),
    ("", True),
    ("the", True),
)
"""And whether the noun is then plural."""
SIZES: dict[Split, int] = {"train": 120_000, "valid": 2_000, "test": 2_000}

# The rules of sound

VOWELS = "aıoueiöü"
BACK = "aıou"
VOICELESS = "fstkçşhp"
VOICED = {"k": "ğ", "p": "b", "ç": "c", "t": "d"}
NARROW_AORIST = (
    "al",
    "bil",
    "bul",
    "dur",
    "gel",
    "gör",
    "kal",
    "ol",
    "öl",
    "san",
    "var",
    "ver",
    "vur",
)
"""The only verbs of one syllable that say -ir in the aorist, and not -er."""


def last_vowel(stem: str) -> str:
    return next(letter for letter in reversed(stem) if letter in VOWELS)


def twofold(stem: str) -> str:
    """The vowel of -ler, -me, -ecek: a after a back vowel, e after a front one."""
    return "a" if last_vowel(stem) in BACK else "e"


def fourfold(stem: str) -> str:
    """The vowel of -i, -di, -ir: as far back and as round as the vowel before it."""
    return {"a": "ı", "ı": "ı", "o": "u", "u": "u", "e": "i", "i": "i", "ö": "ü", "ü": "ü"}[
        last_vowel(stem)
    ]


def before_vowel(stem: str, softens: bool) -> str:
    return stem[:-1] + VOICED[stem[-1]] if softens else stem


# Endings


def plural(noun: str) -> str:
    return noun + "l" + twofold(noun) + "r"


def accusative(noun: str, softens: bool = False) -> str:
    buffer = "y" if noun[-1] in VOWELS else ""
    return before_vowel(noun, softens) + buffer + fourfold(noun)


def conjugate(stem: str, tense: Tense, negative: bool = False, softens: bool = False) -> str:
    """The third person: kovala-r, kovala-dı, kovala-yacak, kovala-maz, kovala-ma-dı,
    kovala-ma-yacak.
    """
    if negative:
        stem, softens = stem + "m" + twofold(stem), False
        if tense == "present":
            return stem + "z"

    if tense == "past":
        return stem + ("t" if stem[-1] in VOICELESS else "d") + fourfold(stem)

    if tense == "future":
        ending = twofold(stem) + "c" + twofold(stem) + "k"
        if stem in ("ye", "de"):  # the only two: yiyecek, diyecek
            return stem[0] + "iy" + ending

        return stem + "y" + ending if stem[-1] in VOWELS else before_vowel(stem, softens) + ending

    if stem[-1] in VOWELS:
        return stem + "r"

    syllables = sum(letter in VOWELS for letter in stem)
    # A stem that softens is made with et-, which counts as one syllable: kaybeder.
    wide = (syllables == 1 or softens) and stem not in NARROW_AORIST

    return before_vowel(stem, softens) + (twofold(stem) if wide else fourfold(stem)) + "r"


def turkish_nouns() -> dict[tuple[str, bool, bool], str]:
    """Of every noun (by its English name), plural or not, accusative or not."""
    forms = {}
    for noun in NOUNS:
        many = plural(noun.turkish)
        forms[noun.english, False, False], forms[noun.english, True, False] = noun.turkish, many
        forms[noun.english, False, True] = accusative(noun.turkish, noun.softens)
        forms[noun.english, True, True] = accusative(many)

    return forms


def turkish_verbs() -> dict[tuple[str, Tense, bool], str]:
    return {
        (verb.english, tense, negative): conjugate(verb.turkish, tense, negative, verb.softens)
        for verb in VERBS
        for tense in TENSES
        for negative in (False, True)
    }


NOUN_FORMS = turkish_nouns()
VERB_FORMS = turkish_verbs()

# Sentences


class Phrase(NamedTuple):
    article: Literal["the", "a", ""]
    adjective: Adjective | None
    noun: Noun
    plural: bool


class TurkishSentence(NamedTuple):
    subject: Phrase
    verb: Verb
    tense: Tense
    negative: bool
    object: Phrase

    def english(self) -> str:
        verb = english_verb(self.verb, self.tense, self.negative, self.subject.plural)
        return " ".join((*english_phrase(self.subject), *verb, *english_phrase(self.object)))

    def aligned(self) -> list[tuple[str, int]]:
        """The Turkish words, each with the place of the English word it translates."""
        said = english_verb(self.verb, self.tense, self.negative, self.subject.plural)
        after_verb = len(english_phrase(self.subject)) + len(said)
        verb = VERB_FORMS[self.verb.english, self.tense, self.negative]

        return [
            *turkish_phrase(self.subject, 0, is_object=False),
            *turkish_phrase(self.object, after_verb, is_object=True),
            (verb, after_verb - 1),
        ]

    def turkish(self) -> str:
        return " ".join([word for word, _ in self.aligned()])


@cache
def english_phrase(phrase: Phrase) -> tuple[str, ...]:
    words = [phrase.noun.plural if phrase.plural else phrase.noun.english]
    if phrase.adjective:
        words.insert(0, phrase.adjective.english)

    if phrase.article:
        words.insert(
            0, "an" if phrase.article == "a" and words[0][0] in "aeiou" else phrase.article
        )

    return tuple(words)


@cache
def english_verb(verb: Verb, tense: Tense, negative: bool, plural: bool) -> tuple[str, ...]:
    if tense == "future":
        return ("will", "not", verb.english) if negative else ("will", verb.english)
    if negative:
        return ("did" if tense == "past" else "do" if plural else "does", "not", verb.english)
    if tense == "past":
        return (verb.past,)

    return (verb.english if plural else verb.third,)


@cache
def turkish_phrase(phrase: Phrase, first: int, is_object: bool) -> tuple[tuple[str, int], ...]:
    """Its words, each with the place of the English word it translates; `first` is the place of the
    English phrase.

    "a small mouse" is "küçük bir fare", and only a definite object has the accusative.
    """
    words, place = [], first + bool(phrase.article)
    if phrase.adjective:
        words.append((phrase.adjective.turkish, place))
        place += 1

    if phrase.article == "a":
        words.append(("bir", first))

    words.append(
        (NOUN_FORMS[phrase.noun.english, phrase.plural, is_object and phrase.article != "a"], place)
    )

    return tuple(words)


# From English back to a sentence


def parse(english: str) -> TurkishSentence:
    """The sentence of this grammar that is said so in English; lower case, no punctuation."""
    words = english.split()
    subject, rest = parse_phrase(words, english)
    negative, tense = "not" in rest[:2], None
    if rest and rest[0] in ("will", "did", "do", "does"):
        tense = {"will": "future", "did": "past"}.get(rest[0], "present")
        rest = rest[2:] if negative else rest[1:]

    word = rest[0] if rest else ""
    verb = next((verb for verb in VERBS if word in (verb.english, verb.third, verb.past)), None)
    if verb is None:
        raise ValueError(f"{english!r}: expected a verb of the grammar, not {word!r}")

    if tense is None:
        tense = "past" if word == verb.past else "present"

    target, rest = parse_phrase(rest[1:], english)
    sentence = TurkishSentence(subject, verb, tense, negative, target)  # type: ignore[arg-type]
    if rest or sentence.english() != " ".join(words):
        raise ValueError(
            f"{english!r}: not a sentence of the grammar; the nearest is {sentence.english()!r}"
        )

    return sentence


def parse_phrase(words: list[str], english: str) -> tuple[Phrase, list[str]]:
    article: Literal["the", "a", ""] = ""
    if words and words[0] in ("the", "a", "an"):
        article, words = "the" if words[0] == "the" else "a", words[1:]

    adjective = next((each for each in ADJECTIVES if words and each.english == words[0]), None)
    words = words[1:] if adjective else words
    noun = next((each for each in NOUNS if words and words[0] in (each.english, each.plural)), None)
    if noun is None:
        raise ValueError(
            f"{english!r}: expected a noun of the grammar, not {words[0] if words else ''!r}"
        )

    return Phrase(article, adjective, noun, words[0] == noun.plural), words[1:]


def translate(english: str) -> str:
    return parse(english).turkish()


def alignment(english: str) -> list[int]:
    """For each Turkish word the place of the English word it translates: of "cats chase mice", 0,
    2, 1.
    """
    return [place for _, place in parse(english).aligned()]


# The corpus


def is_held_out(noun: Noun, verb: Verb) -> bool:
    """The noun and the verb meet in the test split only: one noun in eight, other ones for every
    verb.
    """
    return (NOUNS.index(noun) + 3 * VERBS.index(verb)) % 8 == 4


def phrases(noun: Noun, may_be_indefinite: bool) -> list[Phrase]:
    """All that a noun can stand in, those without an adjective so often that they are half of them."""
    adjectives = [adjective for adjective in ADJECTIVES if noun.kind in adjective.kinds]
    return [
        Phrase(article, adjective, noun, plural)
        for adjective in (*adjectives, *[None] * len(adjectives))
        for article, plural in ARTICLES
        if may_be_indefinite or article != "a"
    ]


def draw(seed: int, held_out: bool) -> Iterator[TurkishSentence]:
    """Every form of every verb in turn, with phrases drawn by random(), the same in every version
    of Python.
    """
    choices: dict[tuple[Verb, bool], tuple[list[Phrase], list[Phrase]]] = {}
    for verb, negative in product(VERBS, (False, True)):
        nouns = [noun for noun in NOUNS if is_held_out(noun, verb) == held_out]
        indefinite = (
            verb.indefinite and not negative
        )  # "not a mouse" is hiçbir fare, another construction
        choices[verb, negative] = (
            [
                phrase
                for noun in nouns
                if noun.kind in verb.subjects
                for phrase in phrases(noun, True)
            ],
            [
                phrase
                for noun in nouns
                if noun.kind in verb.objects
                for phrase in phrases(noun, indefinite)
            ],
        )

    number = random.Random(seed).random

    for verb, tense, negative in cycle(product(VERBS, TENSES, (False, True))):
        subject, target = (each[int(number() * len(each))] for each in choices[verb, negative])
        if subject.noun is not target.noun:
            yield TurkishSentence(subject, verb, tense, negative, target)


@cache
def corpus() -> dict[Split, tuple[tuple[str, str], ...]]:
    lecture = parse(
        "cats chase mice"
    )  # to validate on: whoever translates it has not learned it by heart
    seen: dict[str, str] = {}
    splits: dict[Split, tuple[tuple[str, str], ...]] = {}

    for seed, (split, size) in enumerate(SIZES.items()):
        before = sum(map(len, splits.values()))
        if split == "valid":
            seen[lecture.english()] = lecture.turkish()

        for sentence in draw(seed, held_out=split == "test"):
            english = sentence.english()
            if english not in seen and english != lecture.english():
                seen[english] = sentence.turkish()

            if len(seen) == before + size:
                break

        splits[split] = tuple(seen.items())[before:]

    return splits


def pairs(split: Split = "train") -> list[tuple[str, str]]:
    """English and Turkish sentences, all distinct, always the same in the same order."""
    return list(corpus()[split])
