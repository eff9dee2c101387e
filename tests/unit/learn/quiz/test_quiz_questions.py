"""The questions: complete, over all lectures and exercises, and no code contradicts an answer."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from qkv.lab.experiments import modules
from qkv.learn.quiz import QuizQuestion, questions
from qkv.learn.quiz.quiz_code import contradiction, grade, run_code
from qkv.learn.quiz.quiz_files import KINDS

QUESTIONS = questions()
WITH_CODE = [question for question in QUESTIONS if question.code]
EXERCISES = {
    *("lookup", "scores", "self_attention", "masks", "multi_head", "positions", "block"),
    *("byte_pairs", "gpt", "training_step", "generation", "beam_search", "encoder_decoder"),
    *("bert_masking", "lora", "probe"),
}


def name(question: QuizQuestion) -> str:
    return f"{question.topic}-{question.number}"


@pytest.mark.parametrize("question", WITH_CODE, ids=name)
def test_code_does_not_contradict_the_answer(question: QuizQuestion) -> None:
    assert contradiction(question) == ""


def test_there_are_questions_of_each_kind_lecture_and_exercise() -> None:
    lectures = {slide[:3] for question in QUESTIONS for slide in question.slides}
    kinds = Counter(question.kind for question in QUESTIONS)
    assert len(QUESTIONS) >= 75
    assert lectures == {"000", "001", "002", "003", "004"}
    assert {question.exercise for question in QUESTIONS} - {""} == EXERCISES
    assert min(kinds[kind] for kind in KINDS) >= 5
    assert len(WITH_CODE) >= 75


def test_each_question_is_asked_once_and_names_what_exists() -> None:
    ids = Counter(question.id for question in QUESTIONS)
    assert [id for id, count in ids.items() if count > 1] == []
    for question in QUESTIONS:
        assert question.wrong, name(question)
        assert question.experiment in {"", *modules()}, name(question)
        for slide in question.slides:
            assert re.fullmatch(r"00[0-4] L\d{1,3}", slide), name(question)


@pytest.mark.parametrize("question", QUESTIONS, ids=name)
def test_the_answer_is_right_and_each_wrong_one_says_why(question: QuizQuestion) -> None:
    assert grade(question, question.answer).right
    for wrong in question.wrong:
        result = grade(question, wrong.answer)
        assert not result.right
        assert result.why == wrong.why
        assert wrong.why.endswith((".", "?"))


def test_the_right_option_is_not_always_at_the_same_place() -> None:
    places: Counter[int] = Counter()
    for question in QUESTIONS:
        if question.options:
            places[question.options.index(question.answer)] += 1

    assert all(places[place] >= 8 for place in range(4)), places


def test_code_gets_no_input_and_its_errors_are_sentences() -> None:
    assert run_code("print(input())").error.startswith("EOFError")
    assert run_code("1 / 0").error == "ZeroDivisionError: division by zero"
    assert "exit" in run_code("raise SystemExit(3)").error
    assert "SyntaxError" in run_code("print(").error


# Files of a lecturer

GOOD = """
[[question]]
kind = "number"
question = "How much is 3 + 4?"
answer = 7
wrong = [{answer = 12, why = "This is the product."}]
explanation = "3 + 4 = 7."
code = "print(3 + 4)"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_ones_own_is_a_topic(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    (mine,) = questions(path)
    assert (mine.topic, mine.title, mine.number, mine.answer) == ("mine", "mine", 1, "7")
    assert questions(path, topic="mine") == (mine,)
    assert len(questions(path, topic="all")) == len(QUESTIONS) + 1
    assert contradiction(mine) == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"number"', '"numbr"', "question 1: kind: there is no 'numbr'; expected one of choice"),
        ("answer = 7", "", "question 1: answer is missing"),
        ("answer = 7", 'answer = "seven"', "'seven' is not a number"),
        ("answer = 7", "answer = 7\ntolerance = -1", "tolerance: expected a number of 0 or more"),
        ("explanation", "explanatoin", "'explanatoin'; did you mean 'explanation'"),
        (', why = "This is the product."', "", "wrong: why is missing"),
        ("answer = 12", "answer = 7", "wrong: '7' is there twice"),
        ('"number"', '"choice"\nwrong2 = 1', "there is no field 'wrong2'; did you mean 'wrong'"),
        ('[{answer = 12, why = "This is the product."}]', '"12"', "wrong: expected [{answer"),
        ('"number"', '"shape"', "question 1: wrong: 'x' is not a shape"),
        ('"3 + 4 = 7."', '"\\u001b[2J"', "explanation: '\\x1b' cannot be printed"),
        ("[[question]]", "[question", "not valid TOML"),
        ("[[question]]", "[[questions]]", "did you mean 'question'"),
    ],
)
def test_a_mistake_is_named_with_file_and_question(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = GOOD.replace(old, new)
    if '"shape"' in new:
        text = text.replace("answer = 12", 'answer = "x"')

    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        questions(path)

    assert str(path) in str(raised.value)


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + GOOD.replace("answer = 7", "") + GOOD.replace("7", "'a'"))
    with pytest.raises(ValueError, match=r"question 2: answer is missing\n.*question 3: "):
        questions(path)


def test_an_answer_that_its_code_contradicts_is_found(tmp_path: Path) -> None:
    (wrong,) = questions(written(tmp_path, GOOD.replace("answer = 7", "answer = 8")))
    assert contradiction(wrong) == "code: it prints '7', but the answer is '8'"
    (silent,) = questions(written(tmp_path, GOOD.replace("print(3 + 4)", "3 + 4")))
    assert contradiction(silent).startswith("code: it prints nothing")


def test_code_of_a_choice_must_speak_for_the_right_option(tmp_path: Path) -> None:
    text = """
[[question]]
kind = "choice"
question = "Is 3 + 4 even?"
answer = "No"
prints = "False"
wrong = [{answer = "Yes", why = "It is 7.", prints = "True"}]
explanation = "7 is odd."
code = "print((3 + 4) % 2 == 0)"
"""
    (right,) = questions(written(tmp_path, text))
    assert contradiction(right) == ""
    (other,) = questions(written(tmp_path, text.replace("3 + 4)", "3 + 5)")))
    assert "its last line is 'True'; expected 'False'" in contradiction(other)
    (both,) = questions(written(tmp_path, text.replace('prints = "True"', 'prints = "False"')))
    assert "also stands for the wrong answer 'Yes'" in contradiction(both)


def test_an_unknown_topic_lists_the_topics() -> None:
    with pytest.raises(ValueError, match=r"there is no 'foo'; expected one of all, lectures"):
        questions(topic="foo")
