"""From rows to questions: what is scored after what, and which examples stand before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evaluation.small import small_tokenizer
from qkv.evaluation.question import question, requests, with_examples
from qkv.evaluation.task import Task, read_task


def test_the_last_word_is_what_follows_the_last_space() -> None:
    made = question(read_task("lambada"), {"text": 'He said:\n\n"I like my dog'}, "row 1")
    assert (made.context, made.continuations, made.choices) == ('He said:\n\n"I like my', (" dog",), ("dog",))


def test_choices_of_a_list_by_number() -> None:
    row = {"context": "A man", "choices": ["sits. ", "runs.", "is 1."], "answer": 1}
    made = question(read_task("hellaswag"), row, "row 1")
    assert made.context == "A man"
    assert made.continuations == (" sits.", " runs.", " is 1.")
    assert made.choices[made.right] == "runs."
    assert made.answered == "A man runs."


def test_a_gap_is_filled_and_the_rest_of_the_sentence_is_scored_with_it() -> None:
    row = {"context": "It rained.", "question": "The XXXXX was wet.", "candidates": "dog|cat|sun", "answer": "cat"}
    made = question(read_task("cbt"), row, "row 1")
    assert made.context == "It rained. The"
    assert made.continuations == (" dog was wet.", " cat was wet.", " sun was wet.")
    assert made.right == 1


def test_minimal_pairs_have_no_context() -> None:
    made = question(read_task("blimp"), {"sentence_good": "He is.", "sentence_bad": "He are."}, "row 1")
    assert (made.context, made.continuations, made.right) == ("", ("He is.", "He are."), 0)


@pytest.mark.parametrize(("label", "word"), [("0", "negative"), ("1", "positive"), (1, "positive")])
def test_classes_have_labels(label: Any, word: str) -> None:
    made = question(read_task("sst-2"), {"sentence": "fine film ", "label": label}, "row 1")
    assert made.context == "Review: fine film\nSentiment:"
    assert made.choices[made.right] == word


@pytest.mark.parametrize(
    ("task", "row", "sentence"),
    [
        ("lambada", {"text": "word"}, "expected a text of two words or more, not 'word'"),
        ("sst-2", {"sentence": "x", "label": "2"}, "answer: expected 0, 1, not '2'"),
        (
            "hellaswag",
            {"context": "x", "choices": ["a", "b"], "answer": 2},
            "answer: expected one of the choices",
        ),
        ("hellaswag", {"context": "x", "choices": ["a"], "answer": 0}, "choices: expected two choices or more, not 1"),
        ("hellaswag", {"context": "x", "choices": 3, "answer": 0}, "choices: expected a list of texts, not 3"),
        ("cbt", {"context": "x", "question": "y", "candidates": ["a", "b"], "answer": "a"}, "blank: there is no XXXXX"),
    ],
)
def test_a_faulty_row_is_named(task: str, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        question(read_task(task), row, "my.jsonl, row 3")
    assert str(error.value).startswith(f"my.jsonl, row 3: {sentence}")


ROWS = [{"sentence": f"film {number}", "label": str(number % 2)} for number in range(12)]


def asked(task: Task, shots: int, seed: int, rows: Any = ROWS, pool: Any = ROWS) -> list[str]:
    made = with_examples(task, rows, pool, "pool", name="data", shots=shots, seed=seed)
    return [each.context for each in made]


def test_examples_come_before_the_question_and_are_answered() -> None:
    task = replace(read_task("sst-2"), description="Films.")
    for place, context in enumerate(asked(task, 3, 0)):
        first, *examples, last = context.split("\n\n")
        assert first == "Films."
        assert last == f"Review: film {place}\nSentiment:"
        assert len(set(examples)) == 3
        for example in examples:
            number = int(example.split()[2])
            assert number != place  # never its own example
            assert example == f"Review: film {number}\nSentiment: {['negative', 'positive'][number % 2]}"


def test_which_examples_is_a_function_of_the_seed() -> None:
    task = read_task("sst-2")
    assert asked(task, 3, 7) == asked(task, 3, 7) != asked(task, 3, 8)
    assert asked(task, 3, 7)[:4] == asked(task, 3, 7, rows=ROWS[:4])  # whatever else is asked
    for few, more in zip(asked(task, 1, 7), asked(task, 3, 7), strict=True):
        assert few.split("\n\n")[0] == more.split("\n\n")[0]
    assert len({context.split("\n\n")[0] for context in asked(task, 1, 7)}) > 1  # not the same for all


def test_a_row_is_not_its_own_example_from_another_file_either() -> None:
    contexts = asked(read_task("sst-2"), 11, 0, pool=[dict(row) for row in reversed(ROWS)])
    assert all(context.count(f"film {place}\n") == 1 for place, context in enumerate(contexts))
    with pytest.raises(ValueError, match=r"^shots: pool has only 11 other rows for examples, not 12$"):
        asked(read_task("sst-2"), 12, 0)


def test_tokens_are_those_of_the_whole_text() -> None:
    tokenizer = small_tokenizer()
    pairs = [("the cat", " sat"), ("the cat ", "sat"), ("", "the cat"), ("the cat", " s"), ("the cat\n\n", "a dog")]
    made = requests(tokenizer, pairs)
    for (context, continuation), request in zip(pairs, made, strict=True):
        if context:
            assert [*request.context, *request.continuation] == tokenizer.encode(context + continuation)
    assert made[0] == made[1]  # the space belongs to the word
    assert made[2].context == (tokenizer.end,)
    assert list(made[2].continuation) == tokenizer.encode("the cat")
    assert tokenizer.decode(made[4].context) == "the cat"
    with pytest.raises(ValueError, match=r"^choices: '' adds no token"):
        requests(tokenizer, [("the", "")])
