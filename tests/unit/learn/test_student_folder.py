"""The student's folder: nothing of hers is lost, and a damaged progress file is no obstacle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.learn.course import Exercise, course, find_exercise
from qkv.learn.run_checks import CheckResult, Report
from qkv.learn.student_folder import PROGRESS, StudentFolder, start_course
from qkv.learn.student_session import StudentSession

LOOKUP = find_exercise("lookup")
FILE = "ex01_lookup.py"


@pytest.fixture
def folder(tmp_path: Path) -> StudentFolder:
    start_course(tmp_path / "course")
    return StudentFolder(tmp_path / "course")


def test_start_writes_every_template(folder: StudentFolder) -> None:
    names = {path.name for path in folder.path.iterdir()}
    assert names == {
        PROGRESS,
        "mine.py",
        *(f"{exercise.stem}.py" for exercise in course().values()),
    }
    assert (folder.path / FILE).read_text(encoding="utf-8") == LOOKUP.template


def test_starting_again_writes_only_what_is_missing(folder: StudentFolder) -> None:
    (folder.path / FILE).write_text("mine")
    (folder.path / "notes.txt").write_text("mine, too")
    folder.record(LOOKUP, "passed", [("exact", "passed")], folder.digest(LOOKUP))

    written, kept = start_course(folder.path)

    assert written == []
    assert FILE in kept
    assert (folder.path / FILE).read_text() == "mine"
    assert folder.standing(LOOKUP).was_green

    (folder.path / FILE).unlink()
    assert start_course(folder.path)[0] == [FILE]


def test_start_refuses_a_folder_with_other_files_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="has files that are not of the course"):
        start_course(tmp_path)

    with pytest.raises(ValueError, match="is a file; give a new folder"):
        start_course(tmp_path / "thesis.txt")

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_reset_keeps_numbered_copies(folder: StudentFolder) -> None:
    path = folder.path / FILE
    assert folder.reset(LOOKUP) is None, "an untouched file needs no copy"

    copies = []
    for text in (b"first", b"second \xff"):
        path.write_bytes(text)
        copy = folder.reset(LOOKUP)
        assert copy is not None
        assert copy.read_bytes() == text
        assert path.read_text(encoding="utf-8") == LOOKUP.template
        copies.append(copy.name)

    assert copies == ["ex01_lookup.copy1.py", "ex01_lookup.copy2.py"]
    path.unlink()
    assert folder.reset(LOOKUP) is None
    assert path.exists()


def test_progress_is_remembered_until_the_file_changes(folder: StudentFolder) -> None:
    results = [("exact", "passed"), ("exact", "failed"), ("top", "open")]
    folder.record(LOOKUP, "failed", results, folder.digest(LOOKUP))

    standing = StudentFolder(folder.path).standing(LOOKUP)
    assert standing == ("failed", 1, 3, {"exact": "failed", "top": "open"}, False)

    (folder.path / FILE).write_text("changed")
    assert folder.standing(LOOKUP).state == "changed"


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"exercises": 3}',
        b'{"exercises": {"lookup": 3}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_progress_file_is_put_aside(folder: StudentFolder, text: bytes) -> None:
    (folder.path / PROGRESS).write_bytes(text)

    assert folder.standing(LOOKUP).state == "open"

    assert "started anew" in folder.notes[0]
    assert (folder.path / f"{PROGRESS}.damaged-1").read_bytes() == text
    folder.record(LOOKUP, "passed", [("exact", "passed")], folder.digest(LOOKUP))
    assert folder.standing(LOOKUP).state == "passed"


def test_values_of_a_wrong_type_are_ignored(folder: StudentFolder) -> None:
    entry = {"state": "failed", "parts": [1], "held": "many", "hints": 7, "was_green": "yes"}
    (folder.path / PROGRESS).write_text(json.dumps({"exercises": {"lookup": entry}}))

    assert folder.standing(LOOKUP) == ("changed", 0, 0, {}, False)
    assert folder.next_hint(LOOKUP, LOOKUP.parts[0])[1] == 1


def test_there_are_three_hints_and_the_last_one_stays(folder: StudentFolder) -> None:
    part = LOOKUP.parts[0]
    given = [StudentFolder(folder.path).next_hint(LOOKUP, part) for _ in range(4)]
    assert [number for _, number in given] == [1, 2, 3, 3]
    assert [text for text, _ in given] == [*part.hints, part.hints[-1]]


def test_hints_are_for_the_first_part_that_is_not_green(folder: StudentFolder) -> None:
    states = [(part.name, "passed") for part in LOOKUP.parts]
    states[2] = ("top", "failed")
    folder.record(LOOKUP, "failed", states, folder.digest(LOOKUP))

    hint = StudentSession(folder.path).hint()

    assert hint == f"lookup, top, hint 1 of 3: {LOOKUP.parts[2].hints[0]}"


def test_show_waits_for_green(folder: StudentFolder) -> None:
    session = StudentSession(folder.path)
    with pytest.raises(ValueError, match=r"lookup is not green yet.*--insist"):
        session.show("lookup")

    assert session.show("lookup", insist=True) == LOOKUP.answer
    folder.record(LOOKUP, "passed", [("exact", "passed")], folder.digest(LOOKUP))
    (folder.path / FILE).write_text("changed afterwards")
    assert session.show("ex01_lookup.py") == LOOKUP.answer


def test_the_summary_counts_green_exercises(folder: StudentFolder) -> None:
    session = StudentSession(folder.path)
    before = session.summary()
    assert before.startswith("0 of ")
    for exercise in course().values():
        folder.record(exercise, "passed", [("part", "passed")], folder.digest(exercise))

    assert session.summary().startswith(f"All {len(course())} exercises are green.")
    assert "qkv learn finish" in session.next()
    with pytest.raises(ValueError, match="all exercises are green"):
        session.hint()


def test_the_list_does_not_import_torch(folder: StudentFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from qkv.commands.learn import list_exercises; "
        f"list_exercises(Path({str(folder.path)!r})); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split()[-1] == "False", result.stderr
    assert "lookup" in result.stdout


def test_a_change_of_an_earlier_exercise_is_a_change(tmp_path: Path) -> None:
    """The GPT is not green any more when the block that it uses is reset."""
    start_course(tmp_path)
    folder = StudentFolder(tmp_path)
    gpt = course()["gpt"]
    folder.record(gpt, "passed", [("hidden", "passed")], folder.digest(gpt))
    assert folder.standing(gpt).state == "passed"

    folder.file(course()["block"]).write_text("changed = 1\n", encoding="utf-8")
    assert folder.standing(gpt).state == "changed"


def test_a_save_during_a_check_is_not_green(tmp_path: Path) -> None:
    start_course(tmp_path)
    exercise = course()["lookup"]
    path = tmp_path / f"{exercise.stem}.py"

    class SavingRunner:
        def run(self, exercise: Exercise, file: Path) -> Report:
            path.write_text("saved = 1\n", encoding="utf-8")
            return Report(exercise.name, (CheckResult("exact", "title", "passed"),))

    session = StudentSession(tmp_path, SavingRunner())
    session.check(exercise)
    assert session.folder.standing(exercise).state == "changed"


def test_a_repository_without_files_takes_the_course(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    start_course(tmp_path)
    assert (tmp_path / "ex01_lookup.py").is_file()
