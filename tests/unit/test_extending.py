"""Every block of docs/extending.md runs: programs as they are, trainings with a few tiny steps."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
POINTS = (
    "Attention",
    "Position encoding",
    "Kernel",
    "Score",
    "Mask",
    "Feed-forward layer",
    "Model family",
    "Data source",
    "Objective",
    "Optimizer",
    "Evaluation task",
    "Head pattern",
    "Experiment",
    "Server route",
)
TINY = "--steps 2 --width 16 --heads 2 --depth 1 --context 16 --vocabulary 270 --sample-every 0"

# One process for all sections. Servers stop as soon as they have started.
RUNNER = """
import contextlib, io, json, os, runpy, sys, traceback
from pathlib import Path

from qkv.cli import main
from qkv.serving.http.server import Server

Server.run = lambda self, *sockets: None

def run(program):
    environment, arguments = program
    os.environ.update(environment)
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        try:
            if arguments[0] == "qkv":
                sys.argv = arguments
                main()
            else:
                sys.argv = arguments[1:]
                runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as stopped:
            if stopped.code:
                return f"{arguments}: {printed.getvalue()}"
        except BaseException:
            return traceback.format_exc()

    for name in environment:
        del os.environ[name]

results = {}
for section, programs in json.loads(Path("programs.json").read_text()).items():
    results[section] = [error for error in map(run, programs) if error]
Path("results.json").write_text(json.dumps(results))
"""

Program = tuple[dict[str, str], list[str]]


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


def file_name(block: str) -> str:
    """The name of the file, which is the first line of a block."""
    return block.partition("\n")[0].removeprefix("# ")


def program_of(line: str) -> Program:
    """The environment and the arguments of a line of a shell; a training becomes a tiny one."""
    words = shlex.split(line)
    environment = {}
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")

    if "train" in words:
        words += TINY.split()

    return environment, words


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What failed in each section."""
    folder = tmp_path_factory.mktemp("extending")
    (folder / "my.txt").write_text("the cat sat on the mat and the dog ran to the man.\n" * 100)
    programs: dict[str, list[Any]] = {}
    for section in SECTIONS:
        commands = "".join(blocks(section, "sh")).splitlines()
        programs[section] = []
        for block in blocks(section, "python"):
            (folder / file_name(block)).write_text(block)
            command = f"python {file_name(block)}"
            if not any(line.startswith(command) for line in commands):
                programs[section].append(program_of(command))

        programs[section] += map(program_of, commands)

    (folder / "programs.json").write_text(json.dumps(programs))
    result = subprocess.run(
        [sys.executable, "-c", RUNNER], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads((folder / "results.json").read_text())


def test_every_extension_point_is_shown() -> None:
    assert tuple(SECTIONS) == POINTS
    for section in SECTIONS:
        assert all(file_name(block).endswith(".py") for block in blocks(section, "python"))


@pytest.mark.parametrize("section", POINTS)
def test_the_blocks_of_a_section_run(section: str, errors: dict[str, list[str]]) -> None:
    assert errors[section] == []


@pytest.mark.parametrize("section", ["Attention", "Position encoding", "Kernel"])
def test_a_part_takes_less_than_40_lines(section: str) -> None:
    (block,) = blocks(section, "python")
    assert block.count("\n") < 40


def test_an_experiment_takes_less_than_80_lines() -> None:
    (block,) = blocks("Experiment", "python")
    assert block.count("\n") < 80
