"""Ask the questions of the quiz one by one, in the terminal or with answers from a pipe."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from qkv.learn.quiz import quiz_files
from qkv.learn.quiz.quiz_code import Grade, grade, mistakes_of, run_code
from qkv.learn.quiz.quiz_files import QuizQuestion
from qkv.learn.quiz.quiz_progress import FILE, QuizProgress
from qkv.learn.student_folder import PROGRESS

EXPECTED = {
    "choice": "the number of an option",
    "number": "a number, such as 0.25, 1/4 or 2e-3",
    "shape": "a shape, such as (2, 3) or 2x3",
    "code": "what it prints",
}
UNKNOWN = "?"
"""What a student types who does not know the answer."""


def run(
    topic: str | None = None,
    questions: tuple[Path, ...] = (),
    page: Path | None = None,
    number: int | None = None,
    json: bool = False,
    *,
    check: bool = False,
    seed: int | None = None,
    folder: Path | None = None,
) -> int:
    """Ask questions, write them as a page, or check them.

    Args:
        topic: A topic, exercise or lecture; None asks about all.
        questions: Files with questions of one's own.
        page: The HTML file to write instead of asking.
        number: Ask only so many.
        json: Print the result as JSON; the questions go to standard error.
        check: Check the questions instead of asking: does their code contradict an answer?
        seed: Order of the questions; by default another one each time at a terminal, and that of
            the files on a page and in a script.
        folder: Where `quiz.json` keeps the answers; by default this folder if it is a course's.

    Returns:
        The exit status: 1 if a check found mistakes, 130 after an interruption.

    Raises:
        ValueError: If a file has mistakes, there are no such questions, or the page is no .html.
    """
    if page is not None and page.suffix != ".html":
        raise ValueError(f"page: expected the name of an .html file, not {page}")
    if number is not None and number < 1:
        raise ValueError(f"number: expected 1 or more, not {number}")

    chosen = quiz_files.questions(*questions, topic=topic)
    if check:
        return report_mistakes(chosen, json)

    terminal = sys.stdin.isatty()
    ordered = in_random_order(chosen, seed, terminal and page is None)
    if page is not None:
        from qkv.learn.quiz.quiz_page import write_quiz_page  # imports torch

        write_quiz_page(page, ordered[:number])
        print(f"{page}: {len(ordered[:number])} questions")
        return 0

    progress = QuizProgress(answer_file(folder))
    console = Console(file=sys.stderr if json else sys.stdout, highlight=False)
    quiz = Quiz(console, progress, terminal)
    status = quiz.ask_all(progress.in_order(ordered)[:number])
    if json:
        print(dumps(quiz.result()))

    return status


def in_random_order(
    questions: Sequence[QuizQuestion], seed: int | None, always: bool
) -> list[QuizQuestion]:
    """The questions in the order of a seed; without one, in that of the files unless `always`."""
    ordered = list(questions)
    if seed is not None or always:
        random.Random(seed).shuffle(ordered)

    return ordered


def answer_file(folder: Path | None) -> Path | None:
    """Where answers are kept: a given folder, or this one if it is a student's."""
    if folder is not None:
        return folder / FILE
    if Path(PROGRESS).exists() or Path(FILE).exists():
        return Path(FILE)

    return None


def report_mistakes(questions: Sequence[QuizQuestion], json: bool) -> int:
    """Print each mistake with its file and question; return 1 if there is one."""
    found = []
    for question in questions:
        for mistake in mistakes_of(question):
            entry = {"file": question.topic, "question": question.number, "mistake": mistake}
            found.append(entry)

    if json:
        print(dumps({"questions": len(questions), "mistakes": found}))
        return int(bool(found))

    for entry in found:
        print(f"{entry['file']}, question {entry['question']}: {entry['mistake']}")

    with_code = sum(bool(question.code) for question in questions)
    print(f"{len(questions)} questions, {with_code} with code: {len(found)} mistakes")
    return int(bool(found))


class Left(Exception):
    """The student left the quiz, or there is no more input."""


@dataclass
class Quiz:
    """A student at the quiz: asks, explains and counts."""

    console: Console
    progress: QuizProgress
    terminal: bool
    """Whether answers are typed; otherwise each line of standard input is one."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    questions: int = 0

    def ask_all(self, questions: Sequence[QuizQuestion]) -> int:
        """Ask questions until the end, and the wrong ones again if the student wants."""
        self.questions = len(questions)
        if self.terminal:
            with suppress(ImportError):
                import readline  # noqa: F401 - gives input() line editing and history

            self.say(f"{len(questions)} questions. {UNKNOWN} shows the answer, q ends.", "dim")

        status = 0
        try:
            self.ask_round(questions)
        except Left:
            self.console.print()
        except KeyboardInterrupt:
            self.console.print()
            status = 130

        self.show_score()
        return status

    def ask_round(self, questions: Sequence[QuizQuestion]) -> None:
        """Ask questions, then those with wrong answers again, as often as the student wants."""
        while questions:
            wrong = []
            for place, question in enumerate(questions, 1):
                self.show_question(question, f"{place} of {len(questions)}")
                if not self.ask(question):
                    wrong.append(question)

            questions = wrong
            if not wrong or not self.terminal:
                return

            count = "the wrong one" if len(wrong) == 1 else f"the {len(wrong)} wrong ones"
            if not self.line(f"Ask {count} again? [y/n] ").lower().startswith("y"):
                return

    def ask(self, question: QuizQuestion) -> bool:
        """Read an answer to a question, grade and explain it; return whether it is right."""
        while True:
            typed = self.line("> ")
            try:
                result = Grade(False)
                if typed != UNKNOWN:
                    result = grade(question, typed)

                break
            except ValueError as error:
                self.say(str(error), "yellow")
                if not self.terminal:
                    break

        self.explain(question, result, unknown=typed == UNKNOWN)
        self.progress.record(question, result.right)
        self.asked.append(
            {
                "topic": question.topic,
                "question": question.number,
                "kind": question.kind,
                "answer": typed,
                "right": result.right,
            }
        )
        return result.right

    def line(self, prompt: str) -> str:
        """A line that the student types.

        Raises:
            Left: At the end of input, or if she types q.
        """
        text = ""
        while not text:
            try:
                line = input(prompt) if self.terminal else sys.stdin.readline()
            except EOFError:
                raise Left from None
            except UnicodeDecodeError as error:
                raise ValueError(f"standard input: not UTF-8 text ({error})") from error

            if not line and not self.terminal:
                raise Left

            text = line.strip()

        if text.lower() in ("q", "quit", "exit"):
            raise Left

        return text

    # What is shown

    def say(self, text: str, style: str = "") -> None:
        """Print a text; what is in backticks is code."""
        self.console.print(inline(text, style))

    def show_question(self, question: QuizQuestion, place: str) -> None:
        """Print a question with its code and options."""
        self.console.print()
        self.say(f"{place} · {question.title}", "dim")
        self.say(question.question, "bold")
        if question.kind == "code":
            self.show_code(question.code)

        for number, option in enumerate(question.options, 1):
            self.say(f"  {number}  {option}")

        if not question.options:
            self.say(f"Expected: {EXPECTED[question.kind]}", "dim")

    def show_code(self, code: str) -> None:
        """Print code, indented."""
        for line in code.splitlines():
            self.console.print(Text(f"  {line}"), soft_wrap=True)

    def explain(self, question: QuizQuestion, result: Grade, *, unknown: bool) -> None:
        """Print whether an answer is right, why, and what the code says."""
        if result.right:
            self.say("Right.", "bold green")
        elif unknown:
            self.say(f"The answer: {question.answer}", "bold")
        else:
            self.say(f"Not right. {result.why}", "bold red")
            self.say(f"The answer: {question.answer}", "bold")

        self.say(question.explanation)
        if question.code:
            if question.kind != "code":
                self.show_code(question.code)

            output = run_code(question.code)
            for line in (output.output or output.error).splitlines():
                self.console.print(Text(f"  → {line}", "cyan"), soft_wrap=True)

        if where(question):
            self.say(where(question), "dim")

    def show_score(self) -> None:
        """Print how many answers were right, by topic if there are several."""
        right = sum(entry["right"] for entry in self.asked)
        self.say(f"\n{right} of {len(self.asked)} answers are right.", "bold")
        topics: dict[str, list[bool]] = {}
        for entry in self.asked:
            topics.setdefault(entry["topic"], []).append(entry["right"])

        if len(topics) > 1:
            for topic, answers in topics.items():
                self.say(f"  {topic.replace('_', ' '):20} {sum(answers)} of {len(answers)}")

        if self.progress.path is not None and self.asked:
            self.say(f"{self.progress.path} keeps the answers: wrong ones come first.", "dim")

    def result(self) -> dict[str, Any]:
        """The result for a program."""
        return {
            "questions": self.questions,
            "answered": len(self.asked),
            "right": sum(entry["right"] for entry in self.asked),
            "answers": self.asked,
        }


def where(question: QuizQuestion) -> str:
    """Where to go on: the exercise, the experiment and the slides of a question."""
    parts = []
    if question.exercise:
        parts.append(f"exercise {question.exercise}")
    if question.experiment:
        parts.append(f"qkv lab {question.experiment}")
    if question.slides:
        parts.append(f"slides {', '.join(question.slides)}")

    return " · ".join(parts)


def inline(text: str, style: str = "") -> Text:
    """A text whose parts in backticks have the colour of code."""
    result = Text(style=style)
    for place, part in enumerate(text.split("`")):
        result.append(part, "cyan" if place % 2 else "")

    return result
