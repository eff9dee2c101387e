"""The source `python`: the standard library of the running Python, real text that is on every
machine.
"""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Split = Literal["train", "valid"]

LEFT_OUT = {
    "__pycache__",
    "__phello__",
    "dist-packages",
    "encodings",  # tables of characters
    "html/entities.py",
    "idlelib",
    "lib2to3",
    "pydoc_data",  # the language reference as one string
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}
HELD_OUT = {
    "argparse",
    "calendar",
    "csv",
    "difflib",
    "fractions",
    "heapq",
    "json",
    "queue",
    "random",
    "shlex",
    "statistics",
    "tarfile",
    "textwrap",
    "wave",
}
"""Modules for validation, well known and in every version."""


def modules(split: Split = "train", folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """The path of each module in the library, and its text: docstrings and source.

    A file that cannot be read is passed over.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    found = False

    for name in names(folder):
        if (name.partition("/")[0].removesuffix(".py") in HELD_OUT) != (split == "valid"):
            continue

        try:
            with tokenize.open(
                folder / name
            ) as file:  # in the encoding that the file itself declares
                text = file.read()
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue

        if text.strip():
            found = True
            yield name, text

    if not found:
        raise FileNotFoundError(
            f"python: {folder} holds no source of the standard library (a zipped or stripped Python); "
            "name a file of text instead"
        )


def names(folder: Path) -> list[str]:
    """Sorted, and with / on every system."""
    found = []
    for parent, folders, files in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT and not name.startswith((".", "config-"))
        ]
        found += [(inside / name).as_posix() for name in files if name.endswith(".py")]

    return sorted(
        name for name in found if name not in LEFT_OUT and not name.startswith("_sysconfigdata")
    )
