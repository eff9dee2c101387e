"""qkv learn: start, check, hint, show, reset, list, next, and the watcher without a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv.learn.course import course, find_exercise
from support.command_fixtures import Qkv

LOOKUP = find_exercise("lookup")
FILE = "ex01_lookup.py"


@pytest.fixture
def folder(qkv: Qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "course"
    assert qkv("learn", "start", path).code == 0
    monkeypatch.chdir(path)
    return path


def test_start_says_what_to_do_and_keeps_files(qkv: Qkv, folder: Path) -> None:
    (folder / FILE).write_text("mine")
    again = qkv("learn", "start", folder)
    assert f"{len(course()) + 1} were there and are kept" in again.out
    assert (folder / FILE).read_text() == "mine"


def test_start_in_a_folder_with_other_files_is_refused(qkv: Qkv, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    refused = qkv("learn", "start", tmp_path)
    assert refused.refused
    assert "choose a new folder" in refused.error


def test_check_from_open_to_green(qkv: Qkv, folder: Path) -> None:
    """The exit status is 1 until all checks hold; JSON and JUnit say the same."""
    opened = qkv("learn", "check", "lookup")
    assert opened.code == 1
    assert " open   exact" in opened.out

    (folder / FILE).write_text(LOOKUP.answer.replace("argmax()", "argmin()"), encoding="utf-8")
    wrong = qkv("learn", "check", FILE, "--json", "--junit", "results.xml")
    assert wrong.code == 1
    (exercise,) = json.loads(wrong.out)["exercises"]
    messages = [one["message"] for one in exercise["checks"] if one["state"] == "failed"]
    assert "least similar" in messages[0]
    suites = ElementTree.parse(folder / "results.xml").getroot()
    assert len(suites.findall("testsuite/testcase")) == exercise["total"]
    assert len(suites.findall("testsuite/testcase/failure")) == 1

    (folder / FILE).write_text(LOOKUP.answer, encoding="utf-8")
    green = qkv("learn", "check", folder / FILE)
    assert (green.code, green.error) == (0, "")
    assert f"{exercise['total']} of {exercise['total']} hold" in green.out
    assert "\x1b" not in green.out
    assert "green" in qkv("learn", "list").out
    assert qkv("learn", "show", "1").out == LOOKUP.answer


def test_hints_show_and_reset(qkv: Qkv, folder: Path) -> None:
    assert "hint 1 of 3" in qkv("learn", "hint").out
    assert "hint 2 of 3" in qkv("learn", "hint", "lookup").out
    refused = qkv("learn", "show", "lookup")
    assert refused.code == 1
    assert "not green yet" in refused.error
    assert qkv("learn", "show", "lookup", "--insist").out == LOOKUP.answer

    (folder / FILE).write_text("mine")
    assert "your version is in ex01_lookup.copy1.py" in qkv("learn", "reset", "lookup").out
    assert (folder / "ex01_lookup.copy1.py").read_text() == "mine"


def test_next_says_what_to_write(qkv: Qkv, folder: Path) -> None:
    printed = qkv("learn", "next").out
    assert FILE in printed
    assert f"about {LOOKUP.minutes} minutes" in printed
    assert "To write: exact, nearest" in printed


def test_list_has_minutes_and_slides(qkv: Qkv, folder: Path) -> None:
    printed = qkv("learn", "list").out
    assert "003 L92" in printed
    assert f"0 of {len(course())} exercises are green" in printed


def test_a_damaged_progress_file_is_a_note(qkv: Qkv, folder: Path) -> None:
    (folder / ".qkv-learn.json").write_text("{")
    listed = qkv("learn", "list")
    assert listed.code == 0
    assert "started anew" in listed.error


def test_wrong_usage_is_one_sentence(qkv: Qkv, folder: Path, tmp_path: Path) -> None:
    unknown = qkv("learn", "check", "lookupp")
    assert unknown.refused
    assert "there is no 'lookupp'" in unknown.error
    for name in ("check", "hint", "show", "reset"):
        assert qkv("learn", name, "nope").code == 2

    page = qkv("learn", "quiz", "--page", "quiz.txt")
    assert (page.code, "expected the name of an .html file" in page.error) == (2, True)
    assert not Path("quiz.txt").exists()
    assert qkv("learn", "chekc").error.count("\n") == 1
    missing = qkv("learn", "check", "--folder", tmp_path)
    assert missing.code == 1
    assert "there is no course in" in missing.error


def test_without_a_terminal_everything_is_checked_once(
    qkv: Qkv, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.commands.learn.course", lambda: {"lookup": LOOKUP})
    printed = qkv("learn")
    assert printed.code == 1
    assert " open   exact" in printed.out
    assert "\x1b" not in printed.out


def test_ctrl_c_ends_with_130(qkv: Qkv, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qkv.learn.watch_course.check_all", interrupted)
    stopped = qkv("learn", "check")
    assert (stopped.code, stopped.error) == (130, "qkv: stopped\n")


def test_help_lists_the_subcommands(qkv: Qkv) -> None:
    printed = qkv("learn", "--help").out
    assert all(name in printed for name in ("start", "check", "hint", "quiz", "finish"))
    assert "exit status is 1" in qkv("learn", "check", "--help").out
