"""From rows to questions: what is scored after what, and which examples stand before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qkv.evaluation.question import question, requests, with_examples
from qkv.evaluation.task_file import EvaluationTask, read_task
from support.small_evaluation import small_tokenizer


def test_the_last_word_is_what_follows_the_last_space() -> None:
    made = question(read_task("lambada"), {"text": 'He said:\n\n"I like my dog'}, "row 1")
    assert (made.context, made.continuations, made.choices) == (
        'He said:\n\n"I like my',
        (" dog",),
        ("dog",),
    )


def test_choices_of_a_list_by_number() -> None:
    row = {"context": "A man", "choices": ["sits. ", "runs.", "is 1."], "answer": 1}
    made = question(read_task("hellaswag"), row, "row 1")
    assert made.context == "A man"
    assert made.continuations == (" sits.", " runs.", " is 1.")
    assert made.choices[made.right] == "runs."
    assert made.answered == "A man runs."


def test_a_gap_is_filled_and_the_rest_of_the_sentence_is_scored_with_it() -> None:
    row = {
        "context": "It rained.",
        "question": "The XXXXX was wet.",
        "candidates": "dog|cat|sun",
        "answer": "cat",
    }
    made = question(read_task("cbt"), row, "row 1")
    assert made.context == "It rained. The"
    assert made.continuations == (" dog was wet.", " cat was wet.", " sun was wet.")
    assert made.right == 1


@pytest.mark.parametrize("french", [["l'eau", " eau "], "l'eau|eau"])
def test_of_a_line_each_accepted_answer_is_right_and_the_first_is_an_example(french: Any) -> None:
    made = question(read_task("french"), {"english": "water", "french": french}, "row 1")
    assert (made.context, made.choices) == ("water =>", ("l'eau", "eau"))
    assert made.answered == "water => l'eau"


@pytest.mark.parametrize("french", [[], [""], "", 3, ["eau", 3]])
def test_a_line_needs_an_answer(french: Any) -> None:
    with pytest.raises(ValueError, match=r"^row 1: french: expected a list of texts, not "):
        question(read_task("french"), {"english": "water", "french": french}, "row 1")


def test_the_lecture_s_prompt() -> None:
    task = read_task("french")
    rows = [{"english": "cheese", "french": ["fromage", "le fromage"]}]
    pool = [{"english": "sea otter", "french": "loutre de mer"}]
    (made,) = with_examples(task, rows, pool, "pool", name="data", shots=1, seed=0)
    assert made.context == "Translate English to French:\nsea otter => loutre de mer\ncheese =>"


def test_minimal_pairs_have_no_context() -> None:
    made = question(
        read_task("blimp"), {"sentence_good": "He is.", "sentence_bad": "He are."}, "row 1"
    )
    assert (made.context, made.continuations, made.right) == ("", ("He is.", "He are."), 0)


@pytest.mark.parametrize(("label", "word"), [("0", "negative"), ("1", "positive"), (1, "positive")])
def test_classes_have_labels(label: Any, word: str) -> None:
    made = question(read_task("sst-2"), {"sentence": "fine film ", "label": label}, "row 1")
    assert made.context == "Review: fine film\nSentiment:"
    assert made.choices[made.right] == word


NUMBERS = {"context": "2 - 1 =", "choices": ["1", "0", "2"]}


@pytest.mark.parametrize(("answer", "right"), [(0, 0), (1, 1), (2, 2), ("2", 2)])
def test_a_number_is_a_place_whatever_the_choices_say(answer: Any, right: int) -> None:
    assert question(read_task("hellaswag"), {**NUMBERS, "answer": answer}, "row 1").right == right


@pytest.mark.parametrize("answer", ["0", "1"])
def test_a_text_that_may_be_a_choice_or_a_place_is_refused(answer: str) -> None:
    """Also where the row is only an example."""
    task, row = read_task("hellaswag"), {**NUMBERS, "answer": answer}
    sentence = f"row 1: answer: '{answer}' is the text of choice {1 - int(answer)} and the number of choice {answer}; "
    with pytest.raises(ValueError, match=f"^my.jsonl, {sentence}"):
        question(task, row, "my.jsonl, row 1")
    with pytest.raises(ValueError, match=f"^pool, {sentence}"):
        with_examples(task, [{**NUMBERS, "answer": 0}], [row], "pool", name="data", shots=1, seed=0)


def test_labels_come_before_texts_and_numbers() -> None:
    task = replace(read_task("sst-2"), choices={"1": "0", "0": "1"})
    for label in ("1", 1):
        assert question(task, {"sentence": "x", "label": label}, "row 1").right == 0


@pytest.mark.parametrize("how", ["characters", "bytes"])
def test_an_empty_choice_has_no_length_to_divide_by(how: Any) -> None:
    task = replace(read_task("hellaswag"), choices=("{a}", "{b}"), normalise=("none", how))
    row = {"a": "yes", "b": " ", "context": "x", "answer": 0}
    with pytest.raises(
        ValueError,
        match=r"^row 3: choices: number 1 is empty, so nothing can be divided by its length$",
    ):
        question(task, row, "row 3")
    assert question(replace(task, normalise=("none",)), row, "row 3").choices == ("yes", "")


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
        (
            "hellaswag",
            {"context": "x", "choices": ["a"], "answer": 0},
            "choices: expected two choices or more, not 1",
        ),
        (
            "hellaswag",
            {"context": "x", "choices": 3, "answer": 0},
            "choices: expected a list of texts, not 3",
        ),
        (
            "hellaswag",
            {"context": "x", "choices": ["a", "2"], "answer": 2},
            "answer: expected one of the choices or its",
        ),
        ("lambada", {"text": None}, "text: expected a value, not null"),
        ("sst-2", {"sentence": "x", "label": None}, "label: expected a value, not null"),
        (
            "hellaswag",
            {"context": "x", "choices": None, "answer": 0},
            "choices: expected a value, not null",
        ),
        (
            "cbt",
            {"context": "x", "question": "y", "candidates": ["a", "b"], "answer": "a"},
            "blank: there is no XXXXX",
        ),
    ],
)
def test_a_faulty_row_is_named(task: str, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        question(read_task(task), row, "my.jsonl, row 3")
    assert str(error.value).startswith(f"my.jsonl, row 3: {sentence}")


ROWS = [{"sentence": f"film {number}", "label": str(number % 2)} for number in range(12)]


def asked(
    task: EvaluationTask, shots: int, seed: int, rows: Any = ROWS, pool: Any = ROWS
) -> list[str]:
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
            assert (
                example
                == f"Review: film {number}\nSentiment: {['negative', 'positive'][number % 2]}"
            )


def test_which_examples_is_a_function_of_the_seed() -> None:
    task = read_task("sst-2")
    assert asked(task, 3, 7) == asked(task, 3, 7) != asked(task, 3, 8)
    assert asked(task, 3, 7)[:4] == asked(task, 3, 7, rows=ROWS[:4])  # whatever else is asked
    for few, more in zip(asked(task, 1, 7), asked(task, 3, 7), strict=True):
        assert few.split("\n\n")[0] == more.split("\n\n")[0]
    assert (
        len({context.split("\n\n")[0] for context in asked(task, 1, 7)}) > 1
    )  # not the same for all


def test_a_row_is_not_its_own_example_from_another_file_either() -> None:
    contexts = asked(read_task("sst-2"), 11, 0, pool=[dict(row) for row in reversed(ROWS)])
    assert all(context.count(f"film {place}\n") == 1 for place, context in enumerate(contexts))
    with pytest.raises(
        ValueError, match=r"^shots: pool has only 11 other rows for examples, not 12$"
    ):
        asked(read_task("sst-2"), 12, 0)


def test_tokens_are_those_of_the_whole_text() -> None:
    tokenizer = small_tokenizer()
    pairs = [
        ("the cat", " sat"),
        ("the cat ", "sat"),
        ("", "the cat"),
        ("the cat", " s"),
        ("the cat\n\n", "a dog"),
    ]
    made = requests(tokenizer, pairs)
    for (context, continuation), request in zip(pairs, made, strict=True):
        if context:
            assert [*request.context, *request.continuation] == tokenizer.encode(
                context + continuation
            )
    assert made[0] == made[1]  # the space belongs to the word
    assert made[2].context == (tokenizer.end,)
    assert list(made[2].continuation) == tokenizer.encode("the cat")
    assert tokenizer.decode(made[4].context) == "the cat"
    with pytest.raises(ValueError, match=r"^choices: '' adds no token"):
        requests(tokenizer, [("the", "")])
