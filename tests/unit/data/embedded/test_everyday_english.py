"""Everyday English: a corpus without its test sentences, in which both sides of a gap count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from qkv.data import open_pairs, open_texts
from qkv.data.embedded.everyday_english import (
    ENGLISH_SIZES,
    GAP,
    MaskedClue,
    english_texts,
    grammar,
    masked_clues,
)
from qkv.data.sources.named import NAMED_SOURCES

EMBEDDED = ("everyday_english", "grammar_labels", "synthetic_batches", "word_pairs", "word_senses")


def test_sizes_and_distinctness() -> None:
    texts = english_texts("train") + english_texts("valid")
    assert len(texts) == len(set(texts)) == sum(ENGLISH_SIZES.values()) == 11_000
    assert [part.text for part in open_texts(["english:valid"])] == english_texts("valid")
    assert not any(sign in text for text in texts for sign in "*{}[]")


def test_every_word_of_validation_and_every_answer_occurs_in_training() -> None:
    train = Counter(word for text in english_texts("train") for word in text.split())
    needed = {word for text in english_texts("valid") for word in text.split()}
    for clue in masked_clues():
        needed |= set(clue.text.replace(GAP, "").split()) | set(clue.answers)

    assert min(train[word] for word in needed) >= 10


def test_the_possessive_follows_the_subject() -> None:
    possessives = dict(grammar()["subjects"])
    for text in english_texts("valid"):
        subjects = [subject for subject in possessives if f" {subject} " in f" {text} "]
        longest = max(subjects, key=len)
        found = {word for word in text.split() if word in ("our", "her", "his", "their")}
        assert found <= {possessives[longest], *longest.split()}, text


def test_twenty_sentences_to_fill_in_of_which_none_is_in_the_corpus() -> None:
    clues = masked_clues()
    assert clues[0].text == "I took my [mask] for a walk"
    assert clues[0].answers[0] == "dog"
    assert len({clue.text for clue in clues}) == 20
    assert list(open_pairs(["masked-clues"])) == [(clue.text, clue.answers[0]) for clue in clues]
    assert Counter(clue.clue for clue in clues) == {"after": 10, "before": 6, "both": 4}

    texts = {*english_texts("train"), *english_texts("valid")}
    for clue in clues:
        assert clue.text.split().count(GAP) == 1
        assert not {clue.text.replace(GAP, answer) for answer in clue.answers} & texts


def fitting(before: str, after: str) -> set[str]:
    """The words that fill a gap between these words somewhere in the training split."""
    words = set()
    for text in english_texts("train"):
        _, found, rest = text.partition(before)
        if found and rest[rest.find(" ") :].startswith(after):
            words.add(rest.split()[0])

    return words


@pytest.mark.parametrize("clue", masked_clues(), ids=lambda clue: clue.text)
def test_the_corpus_knows_the_answers_and_no_others(clue: MaskedClue) -> None:
    """The clue's words after its subject, with the possessive of any subject."""
    subject = next(s for s, _ in grammar()["subjects"] if clue.text.startswith(f"{s} "))
    before, _, after = clue.text.removeprefix(subject).partition(GAP)
    own = dict(grammar()["subjects"])[subject]
    found = set()
    for possessive in ("my", "our", "his", "her", "their"):
        found |= fitting(before.replace(f" {own} ", f" {possessive} "), after)

    assert found == set(clue.answers)


def test_clues_after_the_gap_are_needed() -> None:
    """The words before the gap alone leave several answers open."""
    for clue in masked_clues():
        if clue.clue == "after":
            words = clue.text.split()
            before = " " + "".join(f"{word} " for word in words[: words.index(GAP)][-2:])
            assert len(fitting(before, "")) > len(clue.answers), clue.text


# By name from the command line


def test_a_bert_trains_on_it_by_name(tmp_path: Path) -> None:
    size = "--context 16 --width 16 --depth 1 --heads 2 --tokenizer words --batch-tokens 256"
    command = f"{sys.executable} -m qkv train bert --data english {size} --steps 2 --out run"
    environment = {**os.environ, "QKV_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        command.split(), cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert result.returncode == 0, result.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["data"]["data"] == ["english"]
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_names_are_known_without_torch() -> None:
    program = (
        "import sys, qkv.data.sources.named; print({'torch', 'numpy'} & set(sys.modules) or 'none')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "none", result.stderr
    assert {"english", "copy", "turkish-long", "labels-tense"} <= set(NAMED_SOURCES)


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_examples_of_docstrings_run(name: str) -> None:
    import doctest
    import importlib

    module = importlib.import_module(f"qkv.data.embedded.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
