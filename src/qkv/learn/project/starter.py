"""Write the starter repository of the project: brief, rubric, commands, tests and templates."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from qkv import storage
from qkv.learn.course import Exercise, course
from qkv.learn.own_gpt_file import MINE

FILES = {
    "README.md": "README.md",
    "rubric.md": "rubric.md",
    "report.md": "report.md",
    "Makefile": "Makefile",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore.txt",
    "tests/test_my_gpt.py": "test_my_gpt.py.txt",
    ".github/workflows/classroom.yml": "classroom.yml",
    "data/README.md": "data.md",
}
"""Paths in the repository, and the texts of this package that they get."""
LAST = "gpt"
"""The exercise that the project builds on."""


def start_project(folder: Path) -> list[Path]:
    """Write the starter repository; files that are there already are left as they are.

    In a folder of the course the student's own exercises are kept, and the project goes on from
    them. In a new folder the repository holds the templates of the exercises that a GPT needs.

    Args:
        folder: The folder of the repository.

    Returns:
        The files that were written.

    Raises:
        ValueError: If the folder is a file.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder: {folder} is a file; choose a folder")

    texts = {name: asset(source) for name, source in FILES.items()}
    texts["mine.py"] = MINE
    for exercise in needed_exercises():
        texts[f"{exercise.stem}.py"] = exercise.template

    written = []
    for name, text in texts.items():
        path = folder / name
        if path.exists():
            continue

        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_text(path, text)
        written.append(path)

    return written


def needed_exercises() -> list[Exercise]:
    """The exercises whose files a GPT imports, and the GPT itself."""
    exercises = course()
    if LAST not in exercises:
        return []

    names = {*exercises[LAST].uses, LAST}
    return [exercise for name, exercise in exercises.items() if name in names]


def asset(name: str) -> str:
    """A text of the folder files."""
    return files("qkv.learn.project").joinpath("files", name).read_text(encoding="utf-8")
