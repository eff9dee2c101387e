"""Which questions a student has answered, in the file quiz.json of her folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qkv import storage
from qkv.learn.quiz.quiz_files import QuizQuestion

FILE = "quiz.json"
VERSION = 1


class QuizProgress:
    """The last answer to each question: right or wrong.

    Args:
        path: The file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.answers: dict[str, bool] = {}
        if path is not None and path.exists():
            self.answers = read_answers(path)

    def record(self, question: QuizQuestion, right: bool) -> None:
        """Keep an answer at once, so that nothing is lost when the quiz is left."""
        self.answers[question.id] = right
        if self.path is not None:
            table = {"version": VERSION, "answers": self.answers}
            storage.write_text(self.path, json.dumps(table, indent=1) + "\n")

    def in_order(self, questions: Sequence[QuizQuestion]) -> list[QuizQuestion]:
        """What was wrong first, then what is new, then what was right."""

        def rank(question: QuizQuestion) -> int:
            ranks = {False: 0, None: 1, True: 2}
            return ranks[self.answers.get(question.id)]

        return sorted(questions, key=rank)


def read_answers(path: Path) -> dict[str, bool]:
    """Read a file of answers.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))["answers"]
        return {str(id): bool(right) for id, right in answers.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: it is not a record of answers; move it away, and the quiz starts anew"
        ) from error
