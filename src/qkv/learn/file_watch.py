"""Which files of the course were saved: found by looking at them again and again.

Editors write a file in place, or write another and rename it, so that a file may be missing or
incomplete for a moment. A file counts as saved when two looks in a row find the same new stamp.
"""

from __future__ import annotations

import os
from pathlib import Path

from qkv.learn.course import Exercise, course

Stamp = tuple[int, int, int]
"""Time of the last change, size and number of a file."""
LOOKS_UNTIL_DELETED = 10


class SavedFiles:
    """The stamps of all files of a course.

    Args:
        folder: The student's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = self.stamps()
        self.last = dict(self.known)
        self.missing: dict[str, int] = {}

    def stamps(self) -> dict[str, Stamp]:
        """The stamp of each file that is there, by the name of its exercise."""
        stamps = {}
        for exercise in course().values():
            try:
                status = os.stat(self.folder / f"{exercise.stem}.py")
            except OSError:
                continue

            stamps[exercise.name] = (status.st_mtime_ns, status.st_size, status.st_ino)

        return stamps

    def look(self) -> list[Exercise]:
        """The exercises whose files were saved, or deleted for some time, since the last look."""
        now = self.stamps()
        changed = []
        for exercise in course().values():
            if self.has_changed(exercise.name, now.get(exercise.name)):
                changed.append(exercise)

        self.last = now
        return changed

    def has_changed(self, name: str, stamp: Stamp | None) -> bool:
        if stamp is None:
            self.missing[name] = self.missing.get(name, 0) + 1
            if self.missing[name] == LOOKS_UNTIL_DELETED and name in self.known:
                del self.known[name]
                return True

            return False

        self.missing.pop(name, None)
        if stamp == self.known.get(name) or stamp != self.last.get(name):
            return False

        self.known[name] = stamp
        return True
