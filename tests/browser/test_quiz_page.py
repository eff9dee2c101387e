"""The quiz in a browser: keys, numbers as typed, hostile questions, narrow windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.learn.quiz import QuizQuestion
from qkv.learn.quiz.quiz_files import WrongAnswer
from qkv.learn.quiz.quiz_page import write_quiz_page
from support.browser_fixtures import LIMIT, Open, PageLog

NUMBERS = {
    "0.25": "0.25",
    ".25": "1/4",
    "0,25": "0.25",
    "1e-3": "0.001",
    "1,024": "2**10",
    "1 024": "1024",
    "50%": "0.5",
    "2^10": "1024",
    "2**-1": "0.5",
    "4 * (64 + 1)": "260",
    "-2^2": "-4",
    "ln(e) + sqrt(16)": "5",
}
SITE = "http://quiz.test/"
"""An address that the browser itself answers with the page."""
HOSTILE = "</script><img src=x onerror=alert(1)> <b>bold</b> `code`"


def question(number: int, kind: str, answer: str, **fields: Any) -> QuizQuestion:
    text = fields.pop("question", f"Question {number}?")
    return QuizQuestion("sums", "Sums", number, kind, text, answer, "Because.", **fields)


@pytest.fixture
def visit_quiz(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page with questions; it may log no error and load nothing from elsewhere.

    With `site=True` it comes from a site instead of a file, whose storage Chromium sometimes loses.
    """
    log = PageLog()
    contexts = []

    def open(
        *questions: QuizQuestion, width: int = 1280, theme: str = "light", site: bool = False
    ) -> Any:
        path = tmp_path / f"quiz{len(contexts)}.html"
        write_quiz_page(path, questions)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        log.listen(page)
        page.route(f"{SITE}*", lambda route: route.fulfill(path=path))
        page.goto(SITE if site else path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open
    for context in contexts:
        context.close()

    assert log.errors == []
    local = ("data:", tmp_path.as_uri(), SITE)
    assert [url for url in log.urls if not url.startswith(local)] == []


def test_a_choice_is_answered_explained_and_asked_again_by_keyboard(visit_quiz: Open) -> None:
    wrong = (WrongAnswer("Six", "That is one less."),)
    choice = question(1, "choice", "Seven", wrong=wrong, code="print(3 + 4)", exercise="masks")
    page = visit_quiz(choice, question(2, "shape", "(2, 3)"))
    page.keyboard.press(str(choice.options.index("Six") + 1))
    feedback = page.inner_text("#feedback")
    for text in (
        "Not right",
        "That is one less.",
        "The answer: Seven",
        "print(3 + 4)",
        "7",
        "masks",
    ):
        assert text in feedback

    page.keyboard.press("Enter")
    page.keyboard.type("2x3")
    page.keyboard.press("Enter")
    assert page.inner_text("#feedback").startswith("Right")
    page.keyboard.press("Enter")
    assert page.inner_text("h2") == "1 of 2 answers are right"
    page.get_by_role("button", name="Ask these 1 again").click()
    assert page.inner_text("#place") == "Question 1 of 1 · Sums"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab" if choice.options[0] == "Six" else "Escape")
    page.keyboard.press("Enter")
    assert page.inner_text("#feedback").startswith("Right")


def test_numbers_are_read_as_in_the_terminal(visit_quiz: Open) -> None:
    questions = [question(i, "number", answer) for i, answer in enumerate(NUMBERS.values())]
    page = visit_quiz(*questions)
    for typed in NUMBERS:
        page.locator("input").fill("seven" if typed == "50%" else "1" * 300)
        page.keyboard.press("Enter")
        assert page.inner_text("#feedback").startswith("This is not a number")
        page.locator("input").fill(typed)
        page.keyboard.press("Enter")
        assert page.inner_text("#feedback").startswith("Right"), typed
        page.keyboard.press("Enter")


def test_answers_are_kept_and_can_be_shown(visit_quiz: Open) -> None:
    page = visit_quiz(question(1, "number", "7"), question(2, "number", "8"), site=True)
    page.get_by_role("button", name="Show the answer").click()
    assert page.inner_text("#feedback").startswith("The answer: 7")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("#place") == "Question 2 of 2 · Sums"
    assert page.inner_text("#score") == "0 of 1 right"


def test_a_hostile_question_is_text(visit_quiz: Open) -> None:
    wrong = (WrongAnswer(HOSTILE, HOSTILE),)
    hostile = question(1, "choice", "x", question=HOSTILE, wrong=wrong, code=f"print({HOSTILE!r})")
    page = visit_quiz(hostile)
    page.keyboard.press(str(hostile.options.index(HOSTILE) + 1))
    assert page.locator("main img").count() == 0
    assert page.inner_text("h2") == HOSTILE.replace("`", "")
    assert page.inner_text("pre.output") == HOSTILE


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1920, "light")])
def test_a_phone_and_a_projector_need_no_scrolling_to_the_side(
    width: int, theme: str, visit_quiz: Open
) -> None:
    long = question(1, "code", "1", code="print(1)  # " + "long " * 60, question="W" * 300)
    page = visit_quiz(long, width=width, theme=theme)
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    for key in ("p", "d"):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press(key)
