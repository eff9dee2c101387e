"""Labels by rule over the English of the grammar: tense, number, negation, and who acts.

`--data labels-tense:train` reads them for `qkv finetune --task classify`. As in `turkish`, no noun
of a test sentence occurs with its verb in training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Literal, get_args

from qkv.data.embedded import turkish
from qkv.data.embedded.turkish import Phrase, Split, TurkishSentence

LabelKind = Literal["tense", "number", "negation", "actor"]
LABEL_SIZES: dict[Split, int] = {"train": 8_000, "valid": 2_000, "test": 2_000}
ACTOR_SEED = 100
"""Seed of the sentences for "actor"; the splits add 0, 1 and 2."""


def tense_label(sentence: TurkishSentence) -> str:
    """present, past or future."""
    return sentence.tense


def number_label(sentence: TurkishSentence) -> str:
    """Whether the subject is singular or plural."""
    return "plural" if sentence.subject.plural else "singular"


def negation_label(sentence: TurkishSentence) -> str:
    """affirmative or negative."""
    return "negative" if sentence.negative else "affirmative"


def actor_label(sentence: TurkishSentence) -> str:
    """The noun that acts, in the singular."""
    return sentence.subject.noun.english


RULES: dict[LabelKind, Callable[[TurkishSentence], str]] = {
    "tense": tense_label,
    "number": number_label,
    "negation": negation_label,
    "actor": actor_label,
}


def labelled_sentences(kind: LabelKind, split: Split = "train") -> list[tuple[str, str]]:
    """English sentences and their labels, always the same.

    Args:
        kind: "tense" (present, past, future), "number" of the subject (singular, plural),
            "negation" (affirmative, negative) or "actor" (the noun that acts, in the singular).
            Sentences of "actor" come in mirrored neighbours, "the cat saw a dog" and "a dog saw the
            cat": their words are the same, so a model that is blind to order is right in one of
            two at most.
        split: "train" (8,000 sentences), "valid" or "test" (2,000 each).

    Returns:
        Distinct sentences, each with its label.

    Raises:
        KeyError: If the kind or the split is unknown.

    Example:
        >>> labelled_sentences("tense", "valid")[0]
        ('cats chase mice', 'present')
    """
    sentences = first_sentences(split)
    if kind == "actor":
        sentences = mirrored_sentences(split)

    rule = RULES[kind]
    return [(sentence.english(), rule(sentence)) for sentence in sentences]


@cache
def first_sentences(split: Split) -> tuple[TurkishSentence, ...]:
    """The first sentences of a split of the grammar's corpus."""
    texts = turkish.pairs(split)[: LABEL_SIZES[split]]
    return tuple(turkish.parse(english) for english, _ in texts)


# Who acts


@cache
def mirrored_sentences(split: Split) -> tuple[TurkishSentence, ...]:
    """Sentences whose subject and object can change places, each followed by its mirror image."""
    is_test = split == "test"
    seen: set[str] = set()
    if split == "train":
        seen |= {sentence.english() for sentence in mirrored_sentences("valid")}

    sentences: list[TurkishSentence] = []
    seed = ACTOR_SEED + get_args(Split).index(split)

    for sentence in turkish.draw(seed, held_out=is_test):
        if len(sentences) == LABEL_SIZES[split]:
            break
        if not is_reversible(sentence) or sentence.english() in seen:
            continue

        mirrored = sentence._replace(subject=sentence.object, object=sentence.subject)
        seen |= {sentence.english(), mirrored.english()}
        sentences += [sentence, mirrored]

    return tuple(sentences)


def is_reversible(sentence: TurkishSentence) -> bool:
    """True if both nouns can act and be acted on, and the verb has the same form for both."""
    phrases: tuple[Phrase, Phrase] = (sentence.subject, sentence.object)
    kinds = {phrase.noun.kind for phrase in phrases}
    can_act = kinds <= set(sentence.verb.subjects)
    can_be_acted_on = kinds <= set(sentence.verb.objects)
    same_number = sentence.subject.plural == sentence.object.plural

    return can_act and can_be_acted_on and same_number


LABELLED: dict[str, Callable[[Split], list[tuple[str, str]]]] = {
    f"labels-{kind}": partial(labelled_sentences, kind) for kind in RULES
}
"""The functions that read labelled sentences, by the name of the source."""
