"""Questions from rows: prompts, continuations, gold labels and few-shot examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qkv.evaluation.question import build_question, encode_requests, with_examples
from qkv.evaluation.task_file import EvaluationTask, read_task
from support.small_evaluation import small_tokenizer


def test_the_last_word_is_what_follows_the_last_space() -> None:
    result = build_question(read_task("lambada"), {"text": 'He said:\n\n"I like my dog'}, "row 1")
    assert (result.context, result.continuations, result.choices) == (
        'He said:\n\n"I like my',
        (" dog",),
        ("dog",),
    )


def test_choices_of_a_list_by_number() -> None:
    row = {"context": "A man", "choices": ["sits. ", "runs.", "is 1."], "answer": 1}
    result = build_question(read_task("hellaswag"), row, "row 1")
    assert result.context == "A man"
    assert result.continuations == (" sits.", " runs.", " is 1.")
    assert result.choices[result.gold] == "runs."
    assert result.answered == "A man runs."


def test_a_gap_is_filled_and_the_rest_of_the_sentence_is_scored_with_it() -> None:
    row = {
        "context": "It rained.",
        "question": "The XXXXX was wet.",
        "candidates": "dog|cat|sun",
        "answer": "cat",
    }
    result = build_question(read_task("cbt"), row, "row 1")
    assert result.context == "It rained. The"
    assert result.continuations == (" dog was wet.", " cat was wet.", " sun was wet.")
    assert result.gold == 1


@pytest.mark.parametrize("french", [["l'eau", " eau "], "l'eau|eau"])
def test_of_a_line_each_accepted_answer_is_right_and_the_first_is_an_example(french: Any) -> None:
    result = build_question(read_task("french"), {"english": "water", "french": french}, "row 1")
    assert (result.context, result.choices) == ("water =>", ("l'eau", "eau"))
    assert result.answered == "water => l'eau"


@pytest.mark.parametrize("french", [[], [""], "", 3, ["eau", 3]])
def test_a_line_needs_an_answer(french: Any) -> None:
    with pytest.raises(ValueError, match=r"^row 1: .*french"):
        build_question(read_task("french"), {"english": "water", "french": french}, "row 1")


def test_the_lecture_s_prompt() -> None:
    task = read_task("french")
    rows = [{"english": "cheese", "french": ["fromage", "le fromage"]}]
    pool = [{"english": "sea otter", "french": "loutre de mer"}]
    (result,) = with_examples(task, rows, pool, "pool", name="data", shots=1, seed=0)
    assert result.context == "Translate English to French:\nsea otter => loutre de mer\ncheese =>"


def test_minimal_pairs_have_no_context() -> None:
    result = build_question(
        read_task("blimp"), {"sentence_good": "He is.", "sentence_bad": "He are."}, "row 1"
    )
    assert (result.context, result.continuations, result.gold) == ("", ("He is.", "He are."), 0)


@pytest.mark.parametrize(("label", "text"), [("0", "negative"), ("1", "positive"), (1, "positive")])
def test_classes_have_labels(label: Any, text: str) -> None:
    result = build_question(read_task("sst-2"), {"sentence": "fine film ", "label": label}, "row 1")
    assert result.context == "Review: fine film\nSentiment:"
    assert result.choices[result.gold] == text


NUMBERS = {"context": "2 - 1 =", "choices": ["1", "0", "2"]}


@pytest.mark.parametrize(("answer", "gold"), [(0, 0), (1, 1), (2, 2), ("2", 2)])
def test_a_number_is_an_index_whatever_the_choices(answer: Any, gold: int) -> None:
    assert (
        build_question(read_task("hellaswag"), {**NUMBERS, "answer": answer}, "row 1").gold == gold
    )


@pytest.mark.parametrize("answer", ["0", "1"])
def test_a_string_that_is_a_choice_and_an_index_is_refused(answer: str) -> None:
    """The same holds for rows that are few-shot examples."""
    task, row = read_task("hellaswag"), {**NUMBERS, "answer": answer}
    message = f"row 1: answer: '{answer}' .*choice {1 - int(answer)} .*choice {answer};"
    with pytest.raises(ValueError, match=f"^my.jsonl, {message}"):
        build_question(task, row, "my.jsonl, row 1")
    with pytest.raises(ValueError, match=f"^pool, {message}"):
        with_examples(task, [{**NUMBERS, "answer": 0}], [row], "pool", name="data", shots=1, seed=0)


def test_labels_come_before_texts_and_numbers() -> None:
    task = replace(read_task("sst-2"), choices={"1": "0", "0": "1"})
    for label in ("1", 1):
        assert build_question(task, {"sentence": "x", "label": label}, "row 1").gold == 0


@pytest.mark.parametrize("how", ["characters", "bytes"])
def test_an_empty_choice_has_no_length_to_divide_by(how: Any) -> None:
    task = replace(read_task("hellaswag"), choices=("{a}", "{b}"), normalise=("none", how))
    row = {"a": "yes", "b": " ", "context": "x", "answer": 0}
    with pytest.raises(ValueError, match=r"^row 3: choices: number 1 is empty"):
        build_question(task, row, "row 3")
    assert build_question(replace(task, normalise=("none",)), row, "row 3").choices == ("yes", "")


@pytest.mark.parametrize(
    ("task", "row", "message"),
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
            "blank: the text has no XXXXX",
        ),
    ],
)
def test_a_faulty_row_is_named(task: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build_question(read_task(task), row, "my.jsonl, row 3")
    assert str(error.value).startswith(f"my.jsonl, row 3: {message}")


ROWS = [{"sentence": f"film {number}", "label": str(number % 2)} for number in range(12)]


def prompts(
    task: EvaluationTask, shots: int, seed: int, rows: Any = ROWS, pool: Any = ROWS
) -> list[str]:
    questions = with_examples(task, rows, pool, "pool", name="data", shots=shots, seed=seed)
    return [question.context for question in questions]


def test_examples_come_before_the_question_and_are_answered() -> None:
    task = replace(read_task("sst-2"), description="Films.")
    for number, context in enumerate(prompts(task, 3, 0)):
        first, *examples, last = context.split("\n\n")
        assert first == "Films."
        assert last == f"Review: film {number}\nSentiment:"
        assert len(set(examples)) == 3
        for example in examples:
            other = int(example.split()[2])
            assert other != number  # never its own example
            label = ["negative", "positive"][other % 2]
            assert example == f"Review: film {other}\nSentiment: {label}"


def test_which_examples_is_a_function_of_the_seed() -> None:
    task = read_task("sst-2")
    assert prompts(task, 3, 7) == prompts(task, 3, 7) != prompts(task, 3, 8)
    assert prompts(task, 3, 7)[:4] == prompts(
        task, 3, 7, rows=ROWS[:4]
    )  # whatever the other rows are
    for few, more in zip(prompts(task, 1, 7), prompts(task, 3, 7), strict=True):
        assert few.split("\n\n")[0] == more.split("\n\n")[0]
    assert (
        len({context.split("\n\n")[0] for context in prompts(task, 1, 7)}) > 1
    )  # not the same for all


def test_a_row_is_not_its_own_example_from_another_file_either() -> None:
    contexts = prompts(read_task("sst-2"), 11, 0, pool=[dict(row) for row in reversed(ROWS)])
    assert all(context.count(f"film {number}\n") == 1 for number, context in enumerate(contexts))
    with pytest.raises(
        ValueError, match=r"^shots: pool has only 11 other rows for examples, not 12$"
    ):
        prompts(read_task("sst-2"), 12, 0)


def test_tokens_are_those_of_the_whole_text() -> None:
    tokenizer = small_tokenizer()
    pairs = [
        ("the cat", " sat"),
        ("the cat ", "sat"),
        ("", "the cat"),
        ("the cat", " s"),
        ("the cat\n\n", "a dog"),
    ]
    requests = encode_requests(tokenizer, pairs)
    for (context, continuation), request in zip(pairs, requests, strict=True):
        if context:
            assert [*request.context, *request.continuation] == tokenizer.encode(
                context + continuation
            )
    assert requests[0] == requests[1]  # the space belongs to the word
    assert requests[2].context == (tokenizer.end,)
    assert list(requests[2].continuation) == tokenizer.encode("the cat")
    assert tokenizer.decode(requests[4].context) == "the cat"
    with pytest.raises(ValueError, match=r"^choices: '' adds no token"):
        encode_requests(tokenizer, [("the", "")])
