"""Data of one's own: registered by name from outside the package, and used like any other."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.data import open_pairs, open_texts, register_source
from qkv.data.sources.named import NAMED_SOURCES


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source `counting`, registered for one test."""
    for name in ("counting", "numerals"):
        monkeypatch.setitem(NAMED_SOURCES, name, NAMED_SOURCES["python"])
        del NAMED_SOURCES[name]

    @register_source("counting", "texts", splits=["train", "valid"])
    def read(split: str) -> Iterator[str]:
        for number in range(300 if split == "train" else 60):
            yield f"{number} and one is {number + 1}"


def test_registered_texts_are_read_by_name() -> None:
    source = open_texts(["counting:valid"])

    assert source.name == "counting:valid"
    assert [part.text for part in source][:2] == ["0 and one is 1", "1 and one is 2"]
    assert source.fingerprint() == open_texts(["counting:valid"]).fingerprint()
    assert len(list(open_texts(["counting"]))) == 300  # the first split is the default


def test_registered_pairs_are_read_by_name() -> None:
    @register_source("numerals", "pairs", splits=["all"])
    def numerals(split: str) -> Iterator[tuple[str, str]]:
        yield "one", "bir"
        yield " two ", "iki"
        yield "", "nothing to learn"

    assert list(open_pairs(["numerals"])) == [("one", "bir"), ("two", "iki")]


FILE = """
def texts(numbers=range(300)):
    for number in numbers:
        yield f"{number} and one is {number + 1}"

def held_out():
    return texts(range(300, 360))

def pairs():
    yield "one", "bir"
"""


def test_a_function_of_a_file_trains_from_the_command_line(tmp_path: Path) -> None:
    size = [
        "--context",
        "16",
        "--width",
        "16",
        "--depth",
        "1",
        "--heads",
        "2",
        "--vocabulary",
        "270",
    ]
    flags = [*size, "--data", "mine.py:texts", "--validation", "mine.py:held_out", "--steps", "2"]
    (tmp_path / "mine.py").write_text(FILE)
    command = [sys.executable, "-m", "qkv", "train", "gpt", *flags, "--out", "run"]
    environment = {
        **os.environ,
        "QKV_CACHE": str(tmp_path / "cache"),
        "QKV_PLUGINS": "mine.py",
    }

    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["data"]["data"] == [f"{tmp_path / 'mine.py'}:texts"]  # it resumes from anywhere
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_function_yields_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    with pytest.raises(ValueError, match=r"data: .* if you trust it, set QKV_PLUGINS="):
        open_pairs([f"{file}:pairs"])

    monkeypatch.setenv("QKV_PLUGINS", str(file))

    assert list(open_pairs([f"{file}:pairs"])) == [("one", "bir")]
    with pytest.raises(ValueError, match=r"mine\.py:pairs: expected texts, not \('one', 'bir'\)"):
        list(open_texts([f"{file}:pairs"]))

    with pytest.raises(ValueError, match=r"data: .*mine\.py defines no other; it has texts"):
        open_texts([f"{file}:other"])


def test_errors_name_what_is_registered() -> None:
    with pytest.raises(
        ValueError, match=r"counting:test: expected one of counting:train, counting:v"
    ):
        open_texts(["counting:test"])

    with pytest.raises(ValueError, match="counting holds texts, not pairs"):
        open_pairs(["counting"])

    for name in ("counting", "python", "a:b"):
        with pytest.raises(ValueError, match="name: expected a new name without a colon"):
            register_source(name, "texts")
