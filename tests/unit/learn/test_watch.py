"""Watching: saved, renamed and deleted files are found; each save gets one check."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from qkv.learn import file_watch
from qkv.learn.course import find_exercise
from qkv.learn.file_watch import LOOKS_UNTIL_DELETED, SavedFiles
from qkv.learn.run_checks import Report
from qkv.learn.student_folder import start_course
from qkv.learn.student_session import StudentSession
from qkv.learn.watch_course import watch

LOOKUP = find_exercise("lookup")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    start_course(tmp_path / "course")
    return tmp_path / "course" / "ex01_lookup.py"


def names(saved: SavedFiles, looks: int = 1) -> list[str]:
    return [exercise.name for _ in range(looks) for exercise in saved.look()]


def test_a_save_is_reported_once_when_it_is_complete(file: Path) -> None:
    saved = SavedFiles(file.parent)
    assert names(saved, 3) == []

    file.write_text("half")
    assert names(saved) == [], "the editor may still be writing"
    file.write_text("half and the rest")
    assert names(saved) == []
    assert names(saved) == ["lookup"]
    assert names(saved, 3) == []


def test_an_editor_that_renames_is_noticed(file: Path) -> None:
    saved = SavedFiles(file.parent)
    status = file.stat()
    other = file.with_suffix(".swp")
    other.write_bytes(b"x" * status.st_size)
    file.unlink()
    assert names(saved, 2) == [], "missing for a moment"
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(file)
    assert names(saved, 3) == ["lookup"], "another file, though of the same size and time"


def test_a_deleted_file_is_reported_once_and_again_when_it_is_back(file: Path) -> None:
    saved = SavedFiles(file.parent)
    file.unlink()
    assert names(saved, LOOKS_UNTIL_DELETED - 1) == []
    assert names(saved, 20) == ["lookup"]
    file.write_text("back")
    assert names(saved, 3) == ["lookup"]


class CountingRunner:
    """Counts checks; the first finds nothing, later ones that all holds."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closed = False

    def run(self, exercise: object, path: Path) -> Report:
        self.calls.append(path.name)
        return Report(exercise.name, (), "an error")

    def warm(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_the_watcher_checks_at_the_start_and_after_a_save(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = StudentSession(file.parent)
    runner = CountingRunner()
    session.own_runner = runner
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    pauses = 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            file.write_text("saved")

    watch(session, console, range(8), pause)

    assert runner.calls == [file.name, file.name]
    assert runner.closed
    assert "an error" in console.file.getvalue()
    assert file_watch.LOOKS_UNTIL_DELETED > 2


def test_ctrl_c_ends_the_watcher_and_its_processes(file: Path) -> None:
    session = StudentSession(file.parent)
    runner = CountingRunner()
    session.own_runner = runner

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(session, Console(file=io.StringIO()), pause=stop)

    assert runner.closed
