"""The course in a notebook: files, functions of the notebook, and what is shown."""

from __future__ import annotations

from functools import partial
from inspect import unwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qkv.learn
from qkv.learn import check, hint, reset, show, status
from qkv.learn.course import find_exercise
from qkv.learn.student_folder import start_course

LOOKUP = find_exercise("lookup")


def nearest(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return values[(keys @ query).argmax()]


def top(query: Tensor, keys: Tensor, values: Tensor, l: int) -> Tensor:  # noqa: E741
    return values[(keys @ query).topk(l).indices].sum(0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    start_course(tmp_path / "course")
    monkeypatch.chdir(tmp_path / "course")
    return tmp_path / "course"


def test_the_public_names_are_functions() -> None:
    assert qkv.learn.__all__ == ["check", "hint", "reset", "show", "status"]
    assert all(callable(getattr(qkv.learn, name)) for name in qkv.learn.__all__)


def test_a_function_is_checked_as_its_part() -> None:
    found = check(nearest)
    assert found
    assert [result.part for result in found.report.results] == ["nearest"]

    wrong = check(top)
    assert not wrong
    assert "1/l" in wrong.report.results[0].message


def test_a_namespace_is_checked_and_what_is_missing_is_open() -> None:
    found = check("lookup", mine={"nearest": nearest, "top": top, "torch": torch})
    states = {result.part: result.state for result in found.report.results}
    assert states["nearest"] == "passed"
    assert states["top"] == "failed"
    assert states["softmax"] == "open"
    assert not found


def test_what_is_shown_has_the_message_and_a_table() -> None:
    found = check(top)
    html = found._repr_html_()
    assert "the factor 1/l is missing" in html
    assert "<table" in html
    assert "&lt;q, k_i&gt;" in html
    assert "<q, k_i>" not in html
    assert " fails  top: The mean of the l most similar" in repr(found)


def test_unknown_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="no exercise asks for 'unknown'"):
        check(unknown)


def unknown() -> None:
    """A function that no exercise asks for."""


def test_files_hints_and_progress(folder: Path) -> None:
    """One story: open, a hint, green, the solution, reset."""
    assert not check("lookup")
    assert "hint 1 of 3" in hint("lookup")
    assert "hint 2 of 3" in hint()
    with pytest.raises(ValueError, match="not green yet"):
        show("lookup")

    path = folder / "ex01_lookup.py"
    path.write_text(LOOKUP.answer, encoding="utf-8")
    assert check("lookup")
    assert "green" in status()
    assert show("lookup") == LOOKUP.answer
    assert "ex01_lookup.copy1.py" in reset("lookup")
    assert path.read_text(encoding="utf-8") == LOOKUP.template


def test_a_text_is_shown_without_quotes(folder: Path) -> None:
    shown = status()
    assert repr(shown).splitlines()[0].split()[:2] == ["1", "lookup"]
    assert shown._repr_html_().startswith("<pre>")


def test_a_folder_without_the_course_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for function in (lambda: check("lookup"), hint, status, lambda: reset("lookup")):
        with pytest.raises(ValueError, match="there is no course in this folder"):
            function()


def test_an_exercise_has_a_number_and_anything_else_gets_a_sentence(folder: Path) -> None:
    assert hint(1).startswith("lookup, ")
    assert check(1).exercise is LOOKUP
    assert "ex01_lookup.py is as it was" in reset(1)
    for ask in (check, hint, show, reset):
        with pytest.raises(ValueError, match=r"^exercise: there is no .*3\.5.*; expected one of"):
            unwrap(ask)(3.5)  # without the type checks of the tests

    with pytest.raises(ValueError, match="expected a function with a name, or an exercise, not"):
        check(partial(nearest))
