"""Errors of tokenizers: texts to train on, and files, are refused by the name of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qkv import storage
from qkv.text import Tokenizer, train
from support.small_hf_folders import refused

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def test_an_unknown_kind() -> None:
    with refused("kind: expected one of characters, words, byte-pair, word-piece, not 'bpe'"):
        train("bpe", ["a"], 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["characters", "words", "byte-pair", "word-piece"])
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text(kind: Any, texts: list[str]) -> None:
    with refused("texts: ... are empty"):
        train(kind, iter(texts), 1000)


@pytest.mark.parametrize("kind", ["words", "word-piece"])
def test_no_word(kind: Any) -> None:
    with refused("texts: ... no word"):
        train(kind, [" \n", "\t"], 1000)


def test_one_string() -> None:
    with refused("texts: ... several texts", TypeError):
        train("words", "a text", 100)


def test_a_text_that_is_not_a_string() -> None:
    with refused("texts: ... strings", TypeError):
        train("characters", ["a", b"b"], 100)  # type: ignore[list-item]


@pytest.mark.parametrize("vocabulary", [1.5, True, "100"])
def test_a_vocabulary_that_is_not_a_number(vocabulary: Any) -> None:
    with refused("vocabulary: ... whole number", TypeError):
        train("words", ["a"], vocabulary)


@pytest.mark.parametrize(
    ("kind", "least", "what"),
    [
        ("characters", 6, "a character"),
        ("words", 6, "a word"),
        ("byte-pair", 261, "256 bytes"),
        ("word-piece", 10, "5 characters, counted apart at the start of a word and inside"),
    ],
)
def test_a_vocabulary_that_is_too_small(kind: Any, least: int, what: str) -> None:
    for vocabulary in (-1, 0, 5, least - 1):
        with refused(f"vocabulary: {vocabulary} ... {kind}: ... {least} or more, ... {what}"):
            train(kind, ["ab ?"], vocabulary)

    assert train(kind, ["ab ?"], least).vocabulary == least


def test_negative_ids() -> None:
    with refused("ids: expected 0 or more, found -100"):
        train("characters", ["abc"], 10).decode([5, -100, 6])


@pytest.mark.parametrize("id", [-1, 8, 1000])
def test_an_id_outside_the_vocabulary(id: int) -> None:
    with refused(f"id: expected one of the vocabulary's 8, not {id}"):
        train("characters", ["abc"], 10).token(id)


# Files


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with refused(f"{tmp_path / 'none'}: ... no such file"):
        Tokenizer.read(tmp_path / "none")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    with refused(f"{tmp_path}: no tokenizer in this folder; looked for tokenizer.json, "):
        Tokenizer.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"model": 1}', b'{"version": "1.0"}', b"\xff\xfe"]
)
def test_a_file_that_is_not_a_tokenizer(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with refused(f"{tmp_path / 'tokenizer.json'}: not "):
        Tokenizer.read(tmp_path)


def test_a_file_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    train("words", ["a b c"], 10).write(file)
    whole = file.read_bytes()
    for size in range(0, len(whole) - 1, 97):
        file.write_bytes(whole[:size])
        with refused(f"{file}: not "):
            Tokenizer.read(file)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_cannot_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("words", ["a b c"], 10).write(tmp_path)
    read = storage.read_file

    def denied(path: Path, most: int) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))

        return read(path, most)

    monkeypatch.setattr(storage, "read_file", denied)
    with refused(f"{tmp_path / name}: cannot be read"):
        Tokenizer.read(tmp_path)


GPT2 = {"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "#version: 0.2\na b\n"}
BERT = {"vocab.txt": "[UNK]\na\n"}


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        (
            GPT2,
            {"merges.txt": None},
            "merges.txt: ... no such file",
        ),
        (GPT2, {"vocab.json": "{"}, "vocab.json: not valid JSON ("),
        (GPT2, {"vocab.json": "[]"}, "vocab.json: ... fields in braces"),
        (
            GPT2,
            {"vocab.json": '{"a": "x"}'},
            "vocab.json: 'a': ... 0 or more",
        ),
        (GPT2, {"vocab.json": '{"a": 0, "b": 0}'}, "vocab.json: two tokens have the same id"),
        (
            GPT2,
            {"merges.txt": "a b\na c\n"},
            "merges.txt:2: ... two tokens of",
        ),
        (
            GPT2,
            {"merges.txt": "\nab\n"},
            "merges.txt:2: ... two tokens of",
        ),
        (
            GPT2,
            {"added_tokens.json": '{"c": 9}'},
            "added_tokens.json: ... next free",
        ),
        (
            BERT,
            {"vocab.txt": ""},
            "vocab.txt: ... one token a line",
        ),
        (BERT, {"tokenizer_config.json": "no"}, "tokenizer_config.json: not valid JSON ("),
        (
            BERT,
            {"tokenizer_config.json": '{"do_lower_case": "yes"}'},
            "tokenizer_config.json: do_lower_case: ... true or false",
        ),
    ],
)
def test_files_of_gpt2_and_bert(
    files: dict[str, str], changes: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    Tokenizer.read(tmp_path)
    for name, text in changes.items():
        if text is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(text)

    with refused(f"{tmp_path}/{message}"):
        Tokenizer.read(tmp_path)
