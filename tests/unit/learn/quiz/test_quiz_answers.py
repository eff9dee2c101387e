"""Answers as they are typed, and the quiz with answers from a pipe."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from qkv.learn.quiz import ask
from qkv.learn.quiz.quiz_answers import number_of, option_of, printed_alike, shape_of

NUMBERS = {
    "0.25": 0.25,
    ".25": 0.25,
    "0,25": 0.25,
    "1/8": 0.125,
    "1e-3": 0.001,
    "1,024": 1024,
    "1 024": 1024,
    "1_024": 1024,
    "1,048,576": 1048576,
    "50%": 0.5,
    "2^10": 1024,
    "2**-1": 0.5,
    "-3": -3,
    "−3": -3,
    "4 * (64 + 1)": 260,
    "12 × 2": 24,
    "ln(e)": 1,
    "sqrt(16)": 4,
    "7.": 7,
}
NOT_NUMBERS = [
    *("", "seven", "1/0", "9**9**9", "1e999", "__import__('os')", "ln(0)", "foo(1)", "ln(1, 2)"),
    *("2 3", "1j", "'a'", "1" * 300),
]


@pytest.mark.parametrize(("typed", "value"), NUMBERS.items())
def test_numbers_are_read_as_students_type_them(typed: str, value: float) -> None:
    assert number_of(typed) == pytest.approx(value)


@pytest.mark.parametrize("typed", NOT_NUMBERS)
def test_what_is_not_a_number_is_told(typed: str) -> None:
    with pytest.raises(ValueError, match="is not a number; expected one such as"):
        number_of(typed)


@pytest.mark.parametrize(
    "typed", ["(2, 3)", "2x3", "2 x 3", "2×3", "[2, 3]", "2 3", "2,3", "torch.Size([2, 3])"]
)
def test_shapes_are_read_as_students_type_them(typed: str) -> None:
    assert shape_of(typed) == (2, 3)


def test_shapes_of_one_and_no_dimension() -> None:
    assert shape_of("(5,)") == (5,)
    assert shape_of("()") == ()
    for typed in ("", "two", "2.5", "(2, -3)"):
        with pytest.raises(ValueError, match="is not a shape"):
            shape_of(typed)


def test_options_are_chosen_by_number_letter_or_text() -> None:
    options = ("the first", "the second")
    assert option_of("2", options) == option_of("b)", options) == "the second"
    assert option_of("The First", options) == "the first"
    with pytest.raises(ValueError, match="expected a number from 1 to 2"):
        option_of("3", options)


def test_what_code_prints_may_differ_in_spaces_and_quotes() -> None:
    assert printed_alike("[1,2]", "tensor([1, 2])")
    assert printed_alike('["a"]', "['a']")
    assert printed_alike(".5", "0.5")
    assert not printed_alike("[1, 2]", "[2, 1]")


# The quiz without a terminal

FILE = """
title = "Sums"
[[question]]
kind = "number"
question = "How much is 3 + 4?"
answer = 7
wrong = [{answer = 12, why = "This is the product."}]
explanation = "Count on from 3."
code = "print(3 + 4)"

[[question]]
kind = "shape"
question = "Which shape has a matrix with 2 rows and 3 columns?"
answer = [2, 3]
explanation = "Rows come first."
exercise = "lookup"
slides = ["000 L1"]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def answered(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))


def test_each_line_of_a_pipe_is_an_answer(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(monkeypatch, "12\n2x3\n")
    assert ask.run(questions=(mine,)) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 · Sums" in printed
    assert "Not right. This is the product." in printed
    assert "The answer: 7" in printed
    assert "  → 7" in printed
    assert "exercise lookup · slides 000 L1" in printed
    assert "1 of 2 answers are right." in printed
    assert not Path("quiz.json").exists()


def test_json_has_the_result_alone_on_standard_output(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(monkeypatch, "seven\n")
    assert ask.run(questions=(mine,), json=True) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["questions"], result["answered"], result["right"]) == (2, 1, 0)
    assert result["answers"][0]["answer"] == "seven"
    assert "'seven' is not a number" in captured.err


def test_what_was_wrong_comes_first_the_next_time(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for lines in ("7\n(3, 2)\n", "2x3\nq\n"):
        answered(monkeypatch, lines)
        assert ask.run(questions=(mine,), folder=mine.parent) == 0

    printed = capsys.readouterr().out
    assert "1 of 1 answers are right." in printed
    assert set(json.loads(Path("quiz.json").read_text())["answers"].values()) == {True}


def test_a_damaged_record_is_named_and_kept(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("quiz.json").write_text("[1")
    answered(monkeypatch, "")
    with pytest.raises(ValueError, match=r"quiz\.json: it is not a record of answers"):
        ask.run(questions=(mine,))

    assert Path("quiz.json").read_text() == "[1"


def test_a_check_finds_contradictions_and_unknown_names(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask.run(questions=(mine,), check=True) == 0
    text = FILE.replace("answer = 7", "answer = 8").replace('"lookup"', '"lokup"')
    mine.write_text(text.replace("slides", "experiment = 'none'\nslides"))
    assert ask.run(questions=(mine,), check=True) == 1
    printed = capsys.readouterr().out
    assert "mine, question 1: code: it prints '7', but the answer is '8'" in printed
    assert "mine, question 2: exercise: there is no 'lokup'" in printed
    assert "mine, question 2: experiment: there is no 'none'" in printed


def test_number_limits_and_a_seed_orders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = []
    for seed in (1, 1, 2):
        answered(monkeypatch, "?\n" * 5)
        ask.run(topic="inside", number=5, json=True, seed=seed)
        result = json.loads(capsys.readouterr().out)
        orders.append([entry["question"] for entry in result["answers"]])

    assert orders[0] == orders[1] != orders[2]
    assert len(orders[0]) == 5
    with pytest.raises(ValueError, match="number: expected 1 or more, not 0"):
        ask.run(number=0)


def test_wrong_ones_are_asked_again_at_a_terminal(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Typed(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines = iter(["what", "8", "8", "y", "7", "2x3"])
    monkeypatch.setattr("sys.stdin", Typed())
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(ask, "in_random_order", lambda questions, *_: list(questions))
    assert ask.run(questions=(mine,)) == 0
    printed = capsys.readouterr().out
    assert "'what' is not a number" in printed
    assert "2 of 4 answers are right." in printed


def test_an_interruption_ends_with_the_score(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: int) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupted())
    assert ask.run(questions=(mine,)) == 130
    assert "0 of 0 answers are right." in capsys.readouterr().out


def test_a_page_holds_the_questions_and_the_output_of_their_code(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(FILE.replace("Count on from 3.", "</script><script>alert(1)</script>"))
    page = mine.with_name("quiz.html")
    assert ask.run(questions=(mine,), page=page, number=1) == 0
    assert capsys.readouterr().out == f"{page}: 1 questions\n"
    text = page.read_text(encoding="utf-8")
    data = text.split('id="data">')[1].split("</script>")[0]
    (entry,) = json.loads(data)
    assert entry["output"] == "7"
    assert entry["explanation"] == "</script><script>alert(1)</script>"
    assert "<script>alert" not in text
    assert "http://" not in text
    assert "https://" not in text
