"""Screens: what holds, what fails and why, in a terminal of 80 x 24."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from qkv.learn.check_screen import draw_examples, report_lines
from qkv.learn.course import find_exercise
from qkv.learn.expectations import FailingExample
from qkv.learn.run_checks import CheckResult, Report
from qkv.learn.student_folder import start_course
from qkv.learn.student_session import StudentSession
from qkv.learn.watch_course import show_screen

LOOKUP = find_exercise("lookup")
LARGE = FailingExample("values (8, 8)", tuple((str(row), *["0.123"] * 8) for row in range(8)))
DIFFERS = FailingExample("softmax (2,)", (("0", "0.5, not 0.25", "1"),))
FAILED = CheckResult(
    "softmax", "All values", "failed", "exp(<q, k_i>) is missing", (LARGE, DIFFERS)
)
RESULTS = (
    CheckResult("exact", "The value", "passed"),
    CheckResult("exact", "Zeros", "passed"),
    FAILED,
    *(CheckResult("top", f"Check {number}", "failed", "no") for number in range(12)),
    CheckResult("learns", "Which learn", "open", "not written yet"),
)
REPORT = Report("lookup", RESULTS, printed="one\ntwo\nthree\nfour\nfive\n")


def plain(report: Report, height: int | None = None, width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in report_lines(LOOKUP, report, width, height)]


def test_it_says_what_holds_what_fails_and_what_is_open() -> None:
    lines = plain(REPORT)
    assert lines[0] == "1. Lookup: from a hash table to attention · 2 of 16 hold"
    assert lines[1] == " holds  exact"
    assert lines[2:4] == [" fails  softmax: All values", "        exp(<q, k_i>) is missing"]
    assert any("0.5, not 0.25" in line for line in lines)
    assert " fails  top: Check 11" in lines
    assert " open   learns" in lines
    assert lines[-2:] == [" prints three", "        and 2 more lines"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_screen(width: int) -> None:
    lines = plain(REPORT, height=20, width=width)
    assert len(lines) <= 20
    assert all(cell_len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "exp(<q, k_i>) is missing" in text
    assert "0.5, not 0.25" in text, "the table with the difference stays"
    assert "more checks fail" in text
    assert "open   learns" in text


def test_the_whole_screen_has_24_lines(tmp_path: Path) -> None:
    start_course(tmp_path / "course")
    session = StudentSession(tmp_path / "course")
    session.folder.notes.append("something to know")
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)

    show_screen(session, LOOKUP, REPORT, console)

    text = console.file.getvalue()
    assert text.count("\n") <= 24
    assert "something to know" in text
    assert "Ctrl-C ends" in text
    assert session.folder.notes == [], "a note is shown once"


def test_an_error_is_shown_without_checks() -> None:
    lines = plain(Report("lookup", (), "ex01_lookup.py, line 3: Python cannot read this"))
    assert lines == [
        "1. Lookup: from a hash table to attention · not checked",
        " fails  ex01_lookup.py, line 3: Python cannot read this",
    ]


def test_hostile_texts_do_not_reach_the_terminal() -> None:
    evil = "\x1b[2J\x1b]0;title\x07 [bold]x[/]\r\n"
    example = FailingExample(evil, ((evil, evil),))
    report = Report("lookup", (replace(FAILED, message=evil, examples=(example,)),), printed=evil)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    for line in report_lines(LOOKUP, report):
        console.print(line)

    text = console.file.getvalue()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]x[/]" in text


def test_tables_are_side_by_side_where_they_fit() -> None:
    small = FailingExample("a (1,)", (("0", "1.5"),))
    lines = [line.plain for line in draw_examples((small, small), 60, 10)]
    assert len(lines) == 2
    assert lines[0].count("a (1,)") == 2
    assert len(draw_examples((small, small), 10, 10)) == 4


def test_a_hole_of_an_earlier_file_is_named() -> None:
    message = "attend of ex03_self_attention.py, which it uses, is not written yet"
    report = Report("lookup", (CheckResult("exact", "The value", "open", message),))
    assert plain(report)[1:] == [" open   exact", f"        {message}"]
