"""Grade answers, and run the code of questions to see whether it contradicts their answer."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import NamedTuple

from qkv.learn.course import find_exercise
from qkv.learn.quiz.quiz_answers import number_of, option_of, printed_alike, shape_of
from qkv.learn.quiz.quiz_files import QuizQuestion

MOST_OUTPUT = 4000
"""Characters of the output that are shown."""


class Grade(NamedTuple):
    """Whether an answer is right, and what is wrong with it if that is known."""

    right: bool
    why: str = ""


class CodeOutput(NamedTuple):
    """What code printed, and the error that ended it."""

    output: str
    error: str = ""

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""


def grade(question: QuizQuestion, typed: str) -> Grade:
    """Compare what a student typed with the answer.

    Raises:
        ValueError: If it is not an answer at all: not a number, a shape or an option.
    """
    if question.options:
        typed = option_of(typed, question.options)

    if is_answer(question, typed, question.answer):
        return Grade(True)

    for wrong in question.wrong:
        if is_answer(question, typed, wrong.answer):
            return Grade(False, wrong.why)

    return Grade(False)


def is_answer(question: QuizQuestion, typed: str, answer: str) -> bool:
    """Whether what was typed is an answer, by the question's kind."""
    if question.kind == "number":
        return abs(number_of(typed) - number_of(answer)) <= question.tolerance
    if question.kind == "shape":
        return shape_of(typed) == shape_of(answer)
    if question.kind == "choice":
        return typed == answer

    return printed_alike(typed, answer)


def run_code(code: str) -> CodeOutput:
    """Run code in this process and collect what it prints; its errors become a sentence."""
    printed = io.StringIO()
    error = ""
    with without_input(), contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "<quiz>", "exec", dont_inherit=True), {"__name__": "quiz"})
        except KeyboardInterrupt:
            error = "interrupted"
        except SystemExit:
            error = "the code ends the program; remove exit()"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"

    output = printed.getvalue().rstrip()
    if len(output) > MOST_OUTPUT:
        output = f"... {output[-MOST_OUTPUT:]}"

    return CodeOutput(output, error)


@contextlib.contextmanager
def without_input() -> Iterator[None]:
    """Code that asks for input gets none: the student's next line is an answer."""
    before = sys.stdin
    sys.stdin = io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before


# Checks of questions


def contradiction(question: QuizQuestion) -> str:
    """What the code of a question says against its answer; empty if nothing."""
    if not question.code:
        return ""

    result = run_code(question.code)
    if result.error:
        return f"code: {result.error}"
    if not result.output:
        return "code: it prints nothing; print the answer in the last line"
    if question.kind == "code":
        return compared(result.output, question.answer, question)
    if question.kind == "choice":
        return compared_choice(result.last_line, question)

    return compared(result.last_line, question.answer, question)


def compared(output: str, answer: str, question: QuizQuestion) -> str:
    """What is wrong if the code's output is not the answer."""
    try:
        if is_answer(question, output, answer):
            return ""
    except ValueError:
        pass

    return f"code: it prints {output!r}, but the answer is {answer!r}"


def compared_choice(line: str, question: QuizQuestion) -> str:
    """What is wrong if code prints what a wrong option says."""
    expected = question.prints or question.answer
    if not printed_alike(line, expected):
        return f"code: its last line is {line!r}; expected {expected!r} if the answer is right"

    for wrong in question.wrong:
        if printed_alike(line, wrong.prints or wrong.answer):
            return f"code: its last line {line!r} also stands for the wrong answer {wrong.answer!r}"

    return ""


def mistakes_of(question: QuizQuestion) -> list[str]:
    """All that a check finds wrong with a question that could be read."""
    found = []
    against = contradiction(question)
    if against:
        found.append(against)

    if question.exercise:
        try:
            find_exercise(question.exercise)
        except ValueError as error:
            found.append(str(error))

    from qkv.lab.experiments import modules  # imports torch

    if question.experiment and question.experiment not in modules():
        found.append(f"experiment: there is no {question.experiment!r}; qkv lab lists all")

    return found
