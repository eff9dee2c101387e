"""The student's folder: her files, and what is known of her progress. Does not import torch.

Nothing of the student's is overwritten: `start` writes only files that are missing, and `reset`
keeps a numbered copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from qkv.learn.course import Exercise, ExercisePart, course
from qkv.learn.own_gpt_file import MINE
from qkv.storage import write_text

PROGRESS = ".qkv-learn.json"
"""The file with the progress, which also marks the folder of a course."""
STATES = ("passed", "failed", "open")


class Standing(NamedTuple):
    """How far a student is with an exercise, as of the last check."""

    state: str
    """passed, failed, open, or changed: saved since the last check."""
    held: int
    checks: int
    parts: dict[str, str]
    """The state of each part."""
    was_green: bool
    """Whether all checks passed once."""


NOTHING = Standing("open", 0, 0, {}, False)


class StudentFolder:
    """A folder with the files of the course.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        """What the student should know, such as that the progress could not be read."""

    def file(self, exercise: Exercise) -> Path:
        """The student's file of an exercise."""
        return self.path / f"{exercise.stem}.py"

    def check_exists(self) -> None:
        """Raise ValueError unless the course was started here."""
        if not is_course(self.path):
            where = "this folder" if self.path == Path() else str(self.path)
            raise ValueError(
                f"learn: there is no course in {where}; qkv learn start FOLDER writes one, and the "
                "other commands are for that folder"
            )

    # Progress

    def progress(self) -> dict[str, dict[str, Any]]:
        """What is stored of each exercise; a damaged file is put aside."""
        path = self.path / PROGRESS
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))["exercises"]
            entries = {name: dict(entry) for name, entry in stored.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            aside = free_name(self.path, f"{PROGRESS}.damaged-", "")
            with suppress(OSError):
                path.rename(aside)

            self.notes.append(
                f"{PROGRESS} could not be read and is started anew; the old one is {aside.name}"
            )
            return {}

        return entries

    def change(self, exercise: Exercise, values: Mapping[str, Any]) -> None:
        """Store values of an exercise."""
        progress = self.progress()
        entry = progress.setdefault(exercise.name, {})
        entry.update(values)
        text = json.dumps({"version": 1, "exercises": progress}, indent=1)
        write_text(self.path / PROGRESS, f"{text}\n")

    def record(
        self, exercise: Exercise, state: str, parts: Sequence[tuple[str, str]], digest: str
    ) -> None:
        """Store the result of a check.

        Args:
            exercise: The exercise.
            state: The state of all of it.
            parts: The part and the state of each check.
            digest: The checksum of what was checked, from before the check.
        """
        by_part: dict[str, str] = {}
        for part, found in parts:
            if by_part.get(part, "passed") == "passed":
                by_part[part] = found

        values: dict[str, Any] = {
            "state": state,
            "held": sum(found == "passed" for _, found in parts),
            "checks": len(parts),
            "parts": by_part,
            "file": digest,
        }
        if state == "passed":
            values["was_green"] = True

        self.change(exercise, values)

    def digest(self, exercise: Exercise) -> str:
        """A checksum of the student's file, and of those of earlier exercises that it uses."""
        checksum = hashlib.sha256()
        for name in (exercise.name, *exercise.uses):
            with suppress(OSError):
                checksum.update(self.file(course()[name]).read_bytes())

            checksum.update(name.encode())

        return checksum.hexdigest()[:16]

    def standing(self, exercise: Exercise) -> Standing:
        """How far the student is with an exercise; stored values of a wrong type are ignored."""
        entry = self.progress().get(exercise.name, {})
        state = entry.get("state")
        if state not in STATES:
            return NOTHING._replace(was_green=entry.get("was_green") is True)

        parts = {}
        stored = entry.get("parts")
        for part, found in (stored if isinstance(stored, dict) else {}).items():
            parts[part] = found if found in STATES else "open"

        if entry.get("file") != self.digest(exercise):
            state = "changed"

        return Standing(
            state,
            as_count(entry.get("held")),
            as_count(entry.get("checks")),
            parts,
            entry.get("was_green") is True,
        )

    def next_exercise(self) -> Exercise | None:
        """The first exercise that is not green, or None."""
        for exercise in course().values():
            if self.standing(exercise).state != "passed":
                return exercise

        return None

    # Hints

    def next_hint(self, exercise: Exercise, part: ExercisePart) -> tuple[str, int]:
        """The next hint of a part and its number, from 1; after the last one, that again."""
        stored = self.progress().get(exercise.name, {}).get("hints")
        given = dict(stored) if isinstance(stored, dict) else {}
        number = min(as_count(given.get(part.name)) + 1, len(part.hints))
        given[part.name] = number
        self.change(exercise, {"hints": given})
        return part.hints[number - 1], number

    # Files

    def reset(self, exercise: Exercise) -> Path | None:
        """Write the file of an exercise anew; return the copy of the old one, if it differs."""
        path = self.file(exercise)
        copy = None
        if path.exists() or path.is_symlink():
            content = path.read_bytes()
            if content == exercise.template.encode():
                return None

            copy = free_name(self.path, f"{exercise.stem}.copy", ".py")
            with copy.open("xb") as file:
                file.write(content)

        write_text(path, exercise.template)
        return copy


def start_course(folder: Path) -> tuple[list[str], list[str]]:
    """Write the files of the course that are missing in a folder.

    Args:
        folder: A new or empty folder, or one with the course.

    Returns:
        The names of the files that were written, and of those that were there.

    Raises:
        ValueError: If the folder has other files.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder: {folder} is a file; give a new folder")
    others = [path for path in folder.glob("*") if not path.name.startswith(".")]
    if others and not is_course(folder):
        raise ValueError(
            f"folder: {folder} has files that are not of the course; choose a new folder"
        )

    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{exercise.stem}.py": exercise.template for exercise in course().values()}
    texts["mine.py"] = MINE
    written = []
    kept = []
    for name, text in texts.items():
        path = folder / name
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            kept.append(path.name)
        else:
            written.append(path.name)

    progress = folder / PROGRESS
    if not progress.exists():
        write_text(progress, '{"version": 1, "exercises": {}}\n')

    return written, kept


def is_course(folder: Path) -> bool:
    """Whether the course was started in a folder."""
    if (folder / PROGRESS).exists():
        return True

    return any((folder / f"{exercise.stem}.py").exists() for exercise in course().values())


def free_name(folder: Path, start: str, end: str) -> Path:
    """A path that does not exist, with the next number."""
    taken = [0]
    if folder.is_dir():
        for path in folder.iterdir():
            match = re.fullmatch(re.escape(start) + r"(\d+)" + re.escape(end), path.name)
            if match:
                taken.append(int(match[1]))

    return folder / f"{start}{max(taken) + 1}{end}"


def as_count(value: Any) -> int:
    """A number from a file that anybody may have edited."""
    return value if isinstance(value, int) and 0 <= value < 10**6 else 0
