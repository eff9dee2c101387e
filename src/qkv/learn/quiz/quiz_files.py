"""Questions in TOML files: one file a topic, one `[[question]]` table a question.

    title = "Masks"

    [[question]]
    kind = "number"          # choice, number, shape, or code: what does this code print?
    question = "How many of the 9 weights of 3 tokens does a causal mask forbid?"
    answer = 3               # choice: the right option; shape: [2, 3]; code: what is printed
    wrong = [{answer = 6, why = "6 weights are allowed: those with key <= query."}]
    explanation = "Query i may attend to keys 0 to i, so 2 + 1 + 0 are forbidden."
    code = "print(3 * 3 - 6)"  # optional, of code questions the code; its last line is the answer
    slides = ["001 L181"]      # these three are optional, too
    exercise = "masks"
    experiment = "cheating"

A choice whose code prints something else than an option says what it prints if the option is
right: `prints = "True"`, of the question and, where it helps, of wrong answers.
"""

from __future__ import annotations

import difflib
import hashlib
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.learn.quiz.quiz_answers import number_of, shape_of, shape_text

TOPICS = Path(__file__).with_name("topics")
KINDS = ("choice", "number", "shape", "code")
NEEDED = ("kind", "question", "answer", "explanation")
KEYS = (*NEEDED, "wrong", "tolerance", "code", "prints", "slides", "exercise", "experiment")
WRONG_KEYS = ("answer", "why", "prints")
EVERY_TOPIC = "all"


@dataclass(frozen=True)
class WrongAnswer:
    """A misconception: an answer that students give, and why it is wrong."""

    answer: str
    why: str
    prints: str = ""


@dataclass(frozen=True)
class QuizQuestion:
    """One question of the quiz."""

    topic: str
    """The name of its file without ending and number: masks of 03_masks.toml."""
    title: str
    """What the topic is called."""
    number: int
    """Its place in the file, from 1."""
    kind: str
    question: str
    answer: str
    """The right answer as text."""
    explanation: str
    wrong: tuple[WrongAnswer, ...] = ()
    tolerance: float = 0.0
    """Of a number: the difference that still counts as right."""
    code: str = ""
    """Python code that computes the answer; of a code question, the code to predict."""
    prints: str = ""
    """The last line that the code of a choice prints, if that is not the answer itself."""
    slides: tuple[str, ...] = ()
    exercise: str = ""
    experiment: str = ""

    @property
    def id(self) -> str:
        """A name that stays when other questions are added."""
        return hashlib.sha256(f"{self.question}\n{self.code}".encode()).hexdigest()[:10]

    @property
    def options(self) -> tuple[str, ...]:
        """The answers to choose from, always in the same order; none where one is typed."""
        if self.kind not in ("choice", "code") or not self.wrong:
            return ()

        answers = [self.answer, *(wrong.answer for wrong in self.wrong)]
        random.Random(self.id).shuffle(answers)
        return tuple(answers)


def questions(*files: str | Path, topic: str | None = None) -> tuple[QuizQuestion, ...]:
    """The questions of the quiz.

    Args:
        files: TOML files with questions of one's own.
        topic: A topic, such as "masks", an exercise, or a lecture such as "003"; by default all
            questions of `files`, or those of qkv if there are no files. "all" means both.

    Returns:
        The questions in the order of the files.

    Raises:
        ValueError: If a file has mistakes, or the topic has no questions.

    Example:
        >>> questions(topic="masks")[0].kind
        'number'
    """
    found = []
    for path in files:
        found += read_topic(Path(path))

    if topic is not None or not files:
        for path in sorted(TOPICS.glob("*.toml")):
            found += read_topic(path)

    if topic is None or topic == EVERY_TOPIC:
        return tuple(found)

    chosen = tuple(question for question in found if belongs(question, topic))
    if not chosen:
        names = ", ".join(dict.fromkeys(question.topic for question in found))
        raise ValueError(f"topic: there is no {topic!r}; expected one of {EVERY_TOPIC}, {names}")

    return chosen


def belongs(question: QuizQuestion, topic: str) -> bool:
    """Whether a question is about a topic, an exercise or a lecture."""
    lectures = {slide.partition(" ")[0] for slide in question.slides}
    return topic in {question.topic, question.exercise, *lectures}


# Reading


def read_topic(path: Path) -> list[QuizQuestion]:
    """Read a file of questions; all its mistakes become one error."""
    table = read_toml(path)
    unknown = sorted(set(table) - {"title", "question"})
    if unknown:
        raise ValueError(f"{path}: {unknown_key(unknown[0], ('title', 'question'))}")

    entries = table.get("question", [])
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise ValueError(f"{path}: there is no [[question]]")

    topic = re.sub(r"^\d+_", "", path.stem)
    title = text_of(table, "title") or topic.replace("_", " ")
    found = []
    mistakes = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(read_question(entry, topic, title, number))
        except ValueError as error:
            mistakes.append(f"{path}, question {number}: {error}")

    if mistakes:
        raise ValueError("\n".join(mistakes))

    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error


def read_question(entry: Mapping[str, Any], topic: str, title: str, number: int) -> QuizQuestion:
    """Read one question.

    Raises:
        ValueError: If a field is missing, unknown or has a wrong value.
    """
    check_keys(entry, KEYS, NEEDED)
    kind = entry["kind"]
    if kind not in KINDS:
        raise ValueError(f"kind: there is no {kind!r}; expected one of {', '.join(KINDS)}")

    answer = answer_text(entry["answer"], kind)
    question = QuizQuestion(
        topic=topic,
        title=title,
        number=number,
        kind=kind,
        question=text_of(entry, "question"),
        answer=answer,
        explanation=text_of(entry, "explanation"),
        wrong=tuple(read_wrong(wrong, kind) for wrong in list_of(entry, "wrong", dict)),
        tolerance=tolerance_of(entry, answer, kind),
        code=text_of(entry, "code"),
        prints=text_of(entry, "prints"),
        slides=tuple(list_of(entry, "slides", str)),
        exercise=text_of(entry, "exercise"),
        experiment=text_of(entry, "experiment"),
    )
    check_question(question)
    return question


def read_wrong(entry: Mapping[str, Any], kind: str) -> WrongAnswer:
    """Read a wrong answer."""
    try:
        check_keys(entry, WRONG_KEYS, ("answer", "why"))
        answer = answer_text(entry["answer"], kind)
        return WrongAnswer(answer, text_of(entry, "why"), text_of(entry, "prints"))
    except ValueError as error:
        raise ValueError(f"wrong: {error}") from error


def check_keys(entry: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    """Check that a table has all fields that it needs, and no unknown ones."""
    for key in entry:
        if key not in known:
            raise ValueError(unknown_key(key, known))

    for key in needed:
        if entry.get(key) in (None, ""):
            raise ValueError(f"{key} is missing")


def unknown_key(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"there is no field {key!r}; did you mean {close[0]!r}?"

    return f"there is no field {key!r}; expected {', '.join(known)}"


def check_question(question: QuizQuestion) -> None:
    """Check that the fields of a question fit together."""
    if question.kind == "choice" and not question.wrong:
        raise ValueError("wrong: a choice needs wrong answers, {answer = ..., why = ...}")
    if question.kind == "code" and not question.code:
        raise ValueError("code is missing")
    if len(question.options) > 9:
        raise ValueError(f"wrong: at most 8 wrong answers, not {len(question.wrong)}")

    answers = [question.answer, *(wrong.answer for wrong in question.wrong)]
    for answer in answers:
        if answers.count(answer) > 1:
            raise ValueError(f"wrong: {answer!r} is there twice")


def text_of(entry: Mapping[str, Any], key: str) -> str:
    """A field that is text, without spaces around it; empty if it is not there."""
    text = entry.get(key, "")
    if not isinstance(text, str):
        raise ValueError(f"{key}: expected text in quotation marks, not {text!r}")

    # A terminal would obey escape sequences
    for character in text:
        if not character.isprintable() and character not in "\n\t":
            raise ValueError(f"{key}: {character!r} cannot be printed; remove it")

    return text.strip("\n").rstrip()


def list_of(entry: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """A field that is a list of texts or of tables."""
    items = entry.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        example = '["...", "..."]' if kind is str else "[{answer = ..., why = ...}]"
        raise ValueError(f"{key}: expected {example}")

    return items


def answer_text(answer: Any, kind: str) -> str:
    """An answer as text; one that is not of its kind is an error."""
    if kind == "number":
        if isinstance(answer, bool) or not isinstance(answer, int | float | str):
            raise ValueError(f"answer: expected a number, not {answer!r}")

        number_of(str(answer))
        return str(answer)

    if kind == "shape":
        return shape_text(shape_of(str(answer)))

    return text_of({"answer": answer}, "answer")


def tolerance_of(entry: Mapping[str, Any], answer: str, kind: str) -> float:
    """The difference that counts as right: by default none of whole numbers, else 1%."""
    if "tolerance" not in entry:
        if kind != "number" or number_of(answer).is_integer():
            return 0.0

        return abs(number_of(answer)) / 100

    tolerance = entry["tolerance"]
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or tolerance < 0:
        raise ValueError(f"tolerance: expected a number of 0 or more, not {tolerance!r}")
    if kind != "number":
        raise ValueError("tolerance: only a number has one")

    return float(tolerance)
