"""The quiz as a page: one HTML file with all questions, answers and outputs of their code.

It needs no network, and its content security policy allows its own script and style alone. The
script puts texts into the page as text, so that a question cannot change it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from qkv import storage
from qkv.insight.render.page import content_policy
from qkv.learn.quiz.quiz_code import run_code
from qkv.learn.quiz.quiz_files import QuizQuestion


def write_quiz_page(path: Path, questions: Sequence[QuizQuestion]) -> None:
    """Write the page, for which the code of all questions runs."""
    storage.write_text(path, quiz_page(questions))


def quiz_page(questions: Sequence[QuizQuestion]) -> str:
    """The page as text."""
    data = [page_question(question) for question in questions]
    script = asset("quiz_page.js")
    style = asset("quiz_page.css")
    return Template(asset("quiz_page.html")).substitute(
        policy=content_policy(script, style),
        style=style,
        data=json.dumps(data).replace("<", "\\u003c"),
        script=script,
    )


def page_question(question: QuizQuestion) -> dict[str, Any]:
    """What the page knows of a question."""
    output = ""
    if question.code:
        result = run_code(question.code)
        output = result.output or result.error

    return {
        "id": question.id,
        "topic": question.topic,
        "title": question.title,
        "kind": question.kind,
        "question": question.question,
        "options": question.options,
        "answer": question.answer,
        "tolerance": question.tolerance,
        "wrong": [{"answer": wrong.answer, "why": wrong.why} for wrong in question.wrong],
        "explanation": question.explanation,
        "code": question.code,
        "output": output,
        "slides": question.slides,
        "exercise": question.exercise,
        "experiment": question.experiment,
    }


def asset(name: str) -> str:
    """The text of a file in the folder web."""
    return files("qkv.learn.quiz").joinpath("web", name).read_text(encoding="utf-8")
