"""Files of a model that are pipes, devices or gigantic are refused at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import qkv
from qkv import storage
from qkv.models import GPT, GPTConfig
from qkv.models.convert import read_folder, read_gguf, write_folder
from qkv.text import Tokenizer, train

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="there are no pipes in this system's folders"
)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def gigantic(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)  # takes no space on the disk


KINDS: dict[Callable[[Path], None], str] = {
    pipe: "expected a regular file, not a pipe, a device or a socket",
    endless: "expected a regular file, not a pipe, a device or a socket",
    gigantic: "too large for such a file",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("characters", ["a small text"], 20)


def write_model(folder: Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=tokenizer.vocabulary, context=8, width=8, depth=1, heads=1))
    write_folder(model, folder, tokenizer=tokenizer)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_folder_with_a_special_file(
    name: str, kind: Callable[[Path], None], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_model(tmp_path, tokenizer)
    (tmp_path / name).unlink()
    kind(tmp_path / name)
    prefix = "not a whole|" if name == "model.safetensors" else ".*"
    message = re.escape(f"{tmp_path / name}: ") + prefix + KINDS[kind]
    with pytest.raises(ValueError, match=message):
        qkv.load(tmp_path)


@pytest.mark.parametrize("kind", [pipe, endless])
def test_a_special_file_by_its_path(kind: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("model.gguf", "tokenizer.json", "vocab.txt"):
        kind(tmp_path / name)

    with pytest.raises(ValueError, match=KINDS[kind]):
        read_gguf(tmp_path / "model.gguf")

    for name in ("model.gguf", "tokenizer.json", "vocab.txt"):
        with pytest.raises(ValueError, match=f"{name}: {KINDS[kind]}"):
            Tokenizer.read(tmp_path / name)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"config\.json: expected a regular file, not a folder"):
        read_folder(tmp_path)


def test_a_file_that_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit does not rely on the reported size: files of /proc report 0."""
    (tmp_path / "some.json").write_bytes(b"x" * (3 << 20))
    assert len(storage.read_file(tmp_path / "some.json", 3 << 20)) == 3 << 20
    real = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda number: os.stat_result([*real(number)[:6], 0, *real(number)[7:10]])
    )
    with pytest.raises(ValueError, match=r"some\.json: more than 2 MiB, too large for such a file"):
        storage.read_file(tmp_path / "some.json", 2 << 20)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(ValueError, match=r"config\.json: cannot be read \(Permission denied\)"):
        read_folder(tmp_path)
