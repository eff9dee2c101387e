"""Checks of output paths before the work begins, so that no result is lost at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qkv import storage


def check_not_input(out: Path | None, files: Iterable[Path | None], what: str) -> None:
    """Refuse to write over one of the input files; None is a file that is not given."""
    if out is None or not out.exists():
        return

    for file in filter(None, files):
        if file.exists() and file.samefile(out):
            raise ValueError(f"out: {out} is the file to be {what}; choose another name")


def check_writable(name: str, path: Path | None) -> None:
    """Refuse a path that cannot be written; `name` is the flag that holds it."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{name}: expected the name of a file, but {path} is a folder")

    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{name}: {path} cannot be written: {above} is a file, not a folder")
    if storage.read_only(above):
        raise ValueError(f"{name}: {path} is on a read-only file system; choose another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: {path} cannot be written: no permission to change {above}")
