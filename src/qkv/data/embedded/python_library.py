"""The source `python`: the standard library of the running Python, present on every machine."""

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
"""Modules for validation: well known, and present in every version."""


def modules(split: Split = "train", folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """The path of each module in the library and its source text; unreadable files are skipped."""
    if folder is None:
        folder = Path(sysconfig.get_path("stdlib"))

    is_empty = True

    for name in names(folder):
        is_held_out = name.partition("/")[0].removesuffix(".py") in HELD_OUT
        if is_held_out != (split == "valid"):
            continue

        try:
            with tokenize.open(folder / name) as file:  # in the encoding that the file declares
                text = file.read()
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue

        if text.strip():
            is_empty = False
            yield name, text

    if is_empty:
        raise FileNotFoundError(
            f"python: {folder} holds no source of the standard library "
            "(a zipped or stripped Python); name a file of text instead"
        )


def texts(split: Split) -> Iterator[str]:
    """The source text of each module."""
    for _, text in modules(split):
        yield text


def names(folder: Path) -> list[str]:
    """The paths of the modules relative to the folder, sorted, with / on every system."""
    paths: list[str] = []
    for parent, folders, files in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        folders[:] = filter(is_package, folders)  # os.walk enters only these
        for file in files:
            path = (inside / file).as_posix()
            is_generated = path.startswith("_sysconfigdata")
            if file.endswith(".py") and path not in LEFT_OUT and not is_generated:
                paths.append(path)

    return sorted(paths)


def is_package(folder: str) -> bool:
    return folder not in LEFT_OUT and not folder.startswith((".", "config-"))
