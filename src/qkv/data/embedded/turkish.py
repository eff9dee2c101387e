"""An English-Turkish grammar: "cats chase mice" / "kediler fareleri kovalar".

Turkish puts the verb last, marks a definite object by the accusative, and expresses "not", "will"
and the plural by endings whose vowels follow the last vowel of the word (vowel harmony). The test
split is compositional: none of its nouns occurs with its verb in training, though every word form
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
Article = Literal["the", "a", ""]
ARTICLES: tuple[tuple[Article, bool], ...] = (
    ("the", False),
    ("a", False),
    ("", True),
    ("the", True),
)
"""English articles, each with whether the noun is plural."""
AUXILIARIES: dict[str, Tense] = {
    "will": "future",
    "did": "past",
    "do": "present",
    "does": "present",
}
SIZES: dict[Split, int] = {"train": 120_000, "valid": 2_000, "test": 2_000}

# Vowel harmony and consonant softening

VOWELS = "aıoueiöü"
BACK = "aıou"
VOICELESS = "fstkçşhp"
VOICED = {"k": "ğ", "p": "b", "ç": "c", "t": "d"}
NARROW_AORIST = {
    "al", "bil", "bul", "dur", "gel", "gör", "kal", "ol", "öl", "san", "var", "ver", "vur",
}  # fmt: skip
"""The only verbs of one syllable whose aorist ends in -ir instead of -er."""
FOURFOLD = {"a": "ı", "ı": "ı", "o": "u", "u": "u", "e": "i", "i": "i", "ö": "ü", "ü": "ü"}
"""The narrow vowel that follows each vowel."""


def last_vowel(stem: str) -> str:
    """The last vowel of a stem, which the vowels of its endings follow."""
    return next(letter for letter in reversed(stem) if letter in VOWELS)


def twofold(stem: str) -> str:
    """The vowel of -ler, -me, -ecek: a after a back vowel, e after a front one."""
    return "a" if last_vowel(stem) in BACK else "e"


def fourfold(stem: str) -> str:
    """The vowel of -i, -di, -ir: as far back and as round as the vowel before it."""
    return FOURFOLD[last_vowel(stem)]


def before_vowel(stem: str, softens: bool) -> str:
    """The stem before an ending with a vowel, its last consonant voiced if it softens."""
    if not softens:
        return stem

    return stem[:-1] + VOICED[stem[-1]]


# Endings


def plural(noun: str) -> str:
    """The plural: kedi-ler, at-lar."""
    return noun + "l" + twofold(noun) + "r"


def accusative(noun: str, softens: bool = False) -> str:
    """The accusative: fare-yi, at-ı, köpeğ-i."""
    if noun[-1] in VOWELS:
        return noun + "y" + fourfold(noun)

    return before_vowel(noun, softens) + fourfold(noun)


def conjugate(stem: str, tense: Tense, negative: bool = False, softens: bool = False) -> str:
    """The third person, such as kovala-r, kovala-dı, kovala-yacak, kovala-maz, kovala-ma-dı."""
    if negative:
        stem = stem + "m" + twofold(stem)
        softens = False
        if tense == "present":
            return stem + "z"

    if tense == "past":
        return past(stem)
    if tense == "future":
        return future(stem, softens)

    return aorist(stem, softens)


def past(stem: str) -> str:
    """The past tense: kovala-dı, seç-ti."""
    if stem[-1] in VOICELESS:
        return stem + "t" + fourfold(stem)

    return stem + "d" + fourfold(stem)


def future(stem: str, softens: bool) -> str:
    """The future tense: kovala-yacak, gör-ecek."""
    ending = twofold(stem) + "c" + twofold(stem) + "k"
    if stem in ("ye", "de"):  # the only irregular ones: yiyecek, diyecek
        return stem[0] + "iy" + ending
    if stem[-1] in VOWELS:
        return stem + "y" + ending

    return before_vowel(stem, softens) + ending


def aorist(stem: str, softens: bool) -> str:
    """The present tense (aorist): kovala-r, gör-ür, sev-er."""
    if stem[-1] in VOWELS:
        return stem + "r"

    # A stem that softens is a compound of et-, which counts as one syllable: kaybeder.
    syllables = sum(letter in VOWELS for letter in stem)
    vowel = fourfold(stem)
    if (syllables == 1 or softens) and stem not in NARROW_AORIST:
        vowel = twofold(stem)

    return before_vowel(stem, softens) + vowel + "r"


def turkish_nouns() -> dict[tuple[str, bool, bool], str]:
    """The forms of every noun by (English noun, plural, accusative)."""
    forms: dict[tuple[str, bool, bool], str] = {}
    for noun in NOUNS:
        many = plural(noun.turkish)
        forms[noun.english, False, False] = noun.turkish
        forms[noun.english, True, False] = many
        forms[noun.english, False, True] = accusative(noun.turkish, noun.softens)
        forms[noun.english, True, True] = accusative(many)

    return forms


def turkish_verbs() -> dict[tuple[str, Tense, bool], str]:
    """The forms of every verb by (English verb, tense, negative)."""
    forms: dict[tuple[str, Tense, bool], str] = {}
    for verb, tense, negative in product(VERBS, TENSES, (False, True)):
        form = conjugate(verb.turkish, tense, negative, verb.softens)
        forms[verb.english, tense, negative] = form

    return forms


NOUN_FORMS = turkish_nouns()
VERB_FORMS = turkish_verbs()

# Sentences


class Phrase(NamedTuple):
    """A noun phrase."""

    article: Article
    adjective: Adjective | None
    noun: Noun
    plural: bool


class TurkishSentence(NamedTuple):
    """A sentence of the grammar, in both languages."""

    subject: Phrase
    verb: Verb
    tense: Tense
    negative: bool
    object: Phrase

    def english(self) -> str:
        verb = english_verb(self.verb, self.tense, self.negative, self.subject.plural)
        return " ".join((*english_phrase(self.subject), *verb, *english_phrase(self.object)))

    def aligned(self) -> list[tuple[str, int]]:
        """The Turkish words, each with the position of the English word it translates."""
        verb_words = english_verb(self.verb, self.tense, self.negative, self.subject.plural)
        after_verb = len(english_phrase(self.subject)) + len(verb_words)
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
    """The English words of a phrase."""
    words = [phrase.noun.plural if phrase.plural else phrase.noun.english]
    if phrase.adjective:
        words.insert(0, phrase.adjective.english)

    if phrase.article == "a" and words[0][0] in "aeiou":
        words.insert(0, "an")
    elif phrase.article:
        words.insert(0, phrase.article)

    return tuple(words)


@cache
def english_verb(verb: Verb, tense: Tense, negative: bool, plural: bool) -> tuple[str, ...]:
    """The English words of a verb with its auxiliary and negation."""
    present = "do" if plural else "does"
    auxiliary = {"past": "did", "future": "will", "present": present}[tense]
    if negative:
        return (auxiliary, "not", verb.english)
    if tense == "future":
        return (auxiliary, verb.english)
    if tense == "past":
        return (verb.past,)

    return (verb.english if plural else verb.third,)


@cache
def turkish_phrase(phrase: Phrase, first: int, is_object: bool) -> tuple[tuple[str, int], ...]:
    """The Turkish words of a phrase, each with the position of the English word it translates.

    `first` is the position of the English phrase. "a small mouse" is "küçük bir fare", and only a
    definite object has the accusative.
    """
    words: list[tuple[str, int]] = []
    position = first + bool(phrase.article)
    if phrase.adjective:
        words.append((phrase.adjective.turkish, position))
        position += 1

    if phrase.article == "a":
        words.append(("bir", first))

    is_accusative = is_object and phrase.article != "a"
    words.append((NOUN_FORMS[phrase.noun.english, phrase.plural, is_accusative], position))

    return tuple(words)


# Parsing English

ARTICLE_OF: dict[str, Article] = {"the": "the", "a": "a", "an": "a"}
ADJECTIVE_OF = {adjective.english: adjective for adjective in ADJECTIVES}
NOUN_OF = {form: noun for noun in NOUNS for form in (noun.english, noun.plural)}
VERB_OF = {form: verb for verb in VERBS for form in (verb.english, verb.third, verb.past)}


def parse(english: str) -> TurkishSentence:
    """The sentence of an English text; lower case, no punctuation."""
    words = english.split()
    subject, rest = parse_phrase(words, english)

    # An auxiliary and a negation before the verb
    tense: Tense | None = None
    negative = "not" in rest[:2]
    if rest and rest[0] in AUXILIARIES:
        tense = AUXILIARIES[rest[0]]
        rest = rest[1 + negative :]

    word = first_word(rest)
    verb = VERB_OF.get(word)
    if verb is None:
        raise ValueError(f"{english!r}: expected a verb of the grammar, not {word!r}")

    if tense is None and word == verb.past:
        tense = "past"

    # The object, after which nothing may follow
    target, rest = parse_phrase(rest[1:], english)
    sentence = TurkishSentence(subject, verb, tense or "present", negative, target)
    if rest or sentence.english() != " ".join(words):
        raise ValueError(
            f"{english!r}: not a sentence of the grammar; the nearest is {sentence.english()!r}"
        )

    return sentence


def first_word(words: list[str]) -> str:
    return words[0] if words else ""


def parse_phrase(words: list[str], english: str) -> tuple[Phrase, list[str]]:
    """The noun phrase at the start of the words, and the words after it."""
    article = ARTICLE_OF.get(first_word(words), "")
    if article:
        words = words[1:]

    adjective = ADJECTIVE_OF.get(first_word(words))
    if adjective:
        words = words[1:]

    word = first_word(words)
    noun = NOUN_OF.get(word)
    if noun is None:
        raise ValueError(f"{english!r}: expected a noun of the grammar, not {word!r}")

    return Phrase(article, adjective, noun, word == noun.plural), words[1:]


def translate(english: str) -> str:
    """The Turkish translation of an English sentence of the grammar."""
    return parse(english).turkish()


def alignment(english: str) -> list[int]:
    """The position of the English word behind each Turkish word: 0, 2, 1 for "cats chase mice"."""
    return [position for _, position in parse(english).aligned()]


# The corpus


def is_held_out(noun: Noun, verb: Verb) -> bool:
    """True if noun and verb occur together only in the test split: one noun in eight per verb."""
    return (NOUNS.index(noun) + 3 * VERBS.index(verb)) % 8 == 4


@cache
def phrases(noun: Noun, may_be_indefinite: bool) -> tuple[Phrase, ...]:
    """All phrases of a noun; half of them are phrases without an adjective, repeated."""
    adjectives: list[Adjective | None] = []
    for adjective in ADJECTIVES:
        if noun.kind in adjective.kinds:
            adjectives.append(adjective)

    adjectives += [None] * len(adjectives)
    phrases: list[Phrase] = []

    for chosen, (article, is_plural) in product(adjectives, ARTICLES):
        if may_be_indefinite or article != "a":
            phrases.append(Phrase(article, chosen, noun, is_plural))

    return tuple(phrases)


def draw(seed: int, held_out: bool) -> Iterator[TurkishSentence]:
    """Endless sentences: every form of every verb in turn, with random phrases.

    Only random() is used, which gives the same numbers in every version of Python.
    """
    choices: dict[tuple[Verb, bool], tuple[list[Phrase], list[Phrase]]] = {}
    for verb, negative in product(VERBS, (False, True)):
        choices[verb, negative] = verb_phrases(verb, negative, held_out)

    uniform = random.Random(seed).random

    for verb, tense, negative in cycle(product(VERBS, TENSES, (False, True))):
        subjects, objects = choices[verb, negative]
        subject = subjects[int(uniform() * len(subjects))]
        target = objects[int(uniform() * len(objects))]
        if subject.noun is not target.noun:
            yield TurkishSentence(subject, verb, tense, negative, target)


def verb_phrases(verb: Verb, negative: bool, held_out: bool) -> tuple[list[Phrase], list[Phrase]]:
    """The phrases that can be the subject and the object of a verb."""
    subjects: list[Phrase] = []
    objects: list[Phrase] = []
    indefinite = verb.indefinite and not negative  # "not a mouse" has another construction

    for noun in NOUNS:
        if is_held_out(noun, verb) != held_out:
            continue

        if noun.kind in verb.subjects:
            subjects += phrases(noun, True)
        if noun.kind in verb.objects:
            objects += phrases(noun, indefinite)

    return subjects, objects


@cache
def corpus() -> dict[Split, tuple[tuple[str, str], ...]]:
    """All distinct sentence pairs by split; the lecture's sentence is the first for validation."""
    lecture = parse("cats chase mice")
    translations: dict[str, str] = {}
    splits: dict[Split, tuple[tuple[str, str], ...]] = {}

    for seed, (split, size) in enumerate(SIZES.items()):
        before = len(translations)
        if split == "valid":
            translations[lecture.english()] = lecture.turkish()

        for sentence in draw(seed, held_out=split == "test"):
            english = sentence.english()
            if english not in translations and english != lecture.english():
                translations[english] = sentence.turkish()

            if len(translations) == before + size:
                break

        splits[split] = tuple(translations.items())[before:]

    return splits


def pairs(split: Split = "train") -> list[tuple[str, str]]:
    """English and Turkish sentences, all distinct, always the same and in the same order."""
    return list(corpus()[split])
