"""Word pairs: counts, distinct questions, splits, and the lecture's few-shot prompt."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.data import open_pairs
from qkv.data.embedded.word_pairs import slide_examples, word_pairs
from qkv.evaluation.protocol import read_task_rows
from qkv.evaluation.question import with_examples
from qkv.evaluation.task_file import read_task


@pytest.mark.parametrize(
    ("name", "size"), [("antonyms", 120), ("plurals", 60), ("capitals", 60), ("french", 60)]
)
def test_counts_distinct_questions_and_splits(name: Any, size: int) -> None:
    pairs = word_pairs(name)
    questions = [question for question, _ in pairs]
    assert len(pairs) == len(set(questions)) == size
    for pair in pairs:
        for text in pair:
            assert text == text.lower().strip() != ""

    train = list(open_pairs([f"{name}:train"]))
    valid = list(open_pairs([f"{name}:valid"]))
    assert len(valid) == size // 5
    assert not set(train) & set(valid)
    assert sorted(train + valid) == sorted(pairs) == sorted(open_pairs([f"{name}:all"]))


def test_some_facts() -> None:
    assert dict(word_pairs("antonyms"))["hot"] == "cold"
    assert dict(word_pairs("plurals"))["goose"] == "geese"
    assert dict(word_pairs("capitals"))["australia"] == "canberra"
    assert dict(word_pairs("french"))["cheese"] == "fromage"


def test_no_antonym_is_its_own_and_both_directions_agree() -> None:
    opposites = dict(word_pairs("antonyms"))
    for word, opposite in opposites.items():
        assert word != opposite
        assert opposites.get(opposite, word) == word


# The lecture's prompt

EXAMPLES = [
    ("sea otter", "loutre de mer"),
    ("peppermint", "menthe poivrée"),
    ("plush girafe", "girafe peluche"),
]
SLIDE = """Translate English to French:
sea otter => loutre de mer
peppermint => menthe poivrée
plush girafe => girafe peluche
cheese =>"""


def test_the_slides_examples_come_first_and_its_question_is_held_out() -> None:
    assert slide_examples() == word_pairs("french", "train")[:3] == EXAMPLES
    assert word_pairs("french", "valid")[0] == ("cheese", "fromage")


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_task_french_slide_is_the_slides_prompt_for_every_seed(seed: int) -> None:
    task = read_task("french-slide")
    rows = read_task_rows(task, [task.beside(task.data)])
    questions = with_examples(task, rows, [], "", name="slide", shots=0, seed=seed)

    assert [question.context for question in questions] == [SLIDE]
    assert questions[0].choices[questions[0].gold] == "fromage"


def test_the_task_french_has_the_slides_examples_among_its_own() -> None:
    task = read_task("french")
    rows = read_task_rows(task, [task.beside(task.examples)])
    assert [(row["english"], row["french"]) for row in rows[:3]] == EXAMPLES
