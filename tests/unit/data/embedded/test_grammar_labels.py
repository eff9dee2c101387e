"""Labels by rule: each against the words of the sentence, balance, splits, and mirror images."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from qkv.data import open_examples
from qkv.data.embedded.grammar_labels import RULES, labelled_sentences
from qkv.data.embedded.turkish_lexicon import NOUNS, VERBS

SIZES = {"train": 8_000, "valid": 2_000, "test": 2_000}
PAST = {verb.past for verb in VERBS}
NOUN_OF = {form: noun.english for noun in NOUNS for form in (noun.english, noun.plural)}
VERB_OF = {form: verb.english for verb in VERBS for form in (verb.english, verb.third, verb.past)}
PLURALS = {noun.plural for noun in NOUNS}


def by_words(kind: str, sentence: str) -> str:
    """The label by the words alone, without the grammar's parser."""
    words = sentence.split()
    nouns = [word for word in words if word in NOUN_OF]
    if kind == "actor":
        return NOUN_OF[nouns[0]]
    if kind == "number":
        return "plural" if nouns[0] in PLURALS else "singular"
    if kind == "negation":
        return "negative" if "not" in words else "affirmative"
    if "will" in words:
        return "future"

    return "past" if "did" in words or PAST & set(words) else "present"


@pytest.mark.parametrize("kind", list(RULES))
@pytest.mark.parametrize("split", list(SIZES))
def test_labels_follow_the_words_and_are_read_by_name(kind: Any, split: Any) -> None:
    rows = labelled_sentences(kind, split)
    assert len({sentence for sentence, _ in rows}) == SIZES[split]
    assert all(by_words(kind, sentence) == label for sentence, label in rows)

    examples = list(open_examples([f"labels-{kind}:{split}"], "classify"))
    assert [(example.texts[0], example.label) for example in examples] == rows


@pytest.mark.parametrize(("kind", "classes"), [("tense", 3), ("number", 2), ("negation", 2)])
def test_classes_are_balanced(kind: Any, classes: int) -> None:
    for split, size in SIZES.items():
        counts = Counter(label for _, label in labelled_sentences(kind, split))  # type: ignore[arg-type]
        assert len(counts) == classes
        assert max(counts.values()) < 1.05 * size / classes


@pytest.mark.parametrize("kind", list(RULES))
def test_splits_share_no_sentence_and_the_test_split_no_noun_with_its_verb(kind: Any) -> None:
    sentences: dict[str, set[str]] = {}
    together: dict[str, set[tuple[str, str]]] = {}
    for split in SIZES:
        sentences[split] = {text for text, _ in labelled_sentences(kind, split)}  # type: ignore[arg-type]
        together[split] = set()
        for text in sentences[split]:
            words = text.split()
            verb = next(VERB_OF[word] for word in words if word in VERB_OF)
            together[split] |= {(NOUN_OF[word], verb) for word in words if word in NOUN_OF}

    assert not sentences["train"] & sentences["valid"]
    assert not (sentences["train"] | sentences["valid"]) & sentences["test"]
    assert not (together["train"] | together["valid"]) & together["test"]


@pytest.mark.parametrize("split", list(SIZES))
def test_who_acts_is_told_by_the_order_alone(split: Any) -> None:
    rows = labelled_sentences("actor", split)
    for (sentence, actor), (mirrored, other) in zip(rows[::2], rows[1::2], strict=True):
        assert sorted(sentence.split()) == sorted(mirrored.split())
        assert actor != other
        assert {actor, other} == {NOUN_OF[word] for word in sentence.split() if word in NOUN_OF}


def test_every_actor_of_the_other_splits_occurs_in_training() -> None:
    actors = {label for _, label in labelled_sentences("actor", "train")}
    for split in ("valid", "test"):
        assert {label for _, label in labelled_sentences("actor", split)} <= actors


def test_labels_can_be_left_out_and_only_classes_are_read() -> None:
    unlabelled = next(iter(open_examples(["labels-tense:valid"], "classify", labelled=False)))
    assert (unlabelled.texts, unlabelled.label) == (("cats chase mice",), None)

    with pytest.raises(ValueError, match="a text and its class, for the task classify, not pair"):
        list(open_examples(["labels-tense:valid"], "pair"))
    with pytest.raises(ValueError, match="copy holds pairs, not labelled rows"):
        open_examples(["copy:train"], "classify")
