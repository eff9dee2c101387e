"""Errors in data are one sentence that names the file, the line and what was expected."""

from __future__ import annotations

import gzip
import lzma
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkv.data import open_pairs, open_texts
from qkv.data.sources import lines as lines_module

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(message: str, kind: type[Exception] = ValueError) -> Any:
    return pytest.raises(kind, match="^" + re.escape(message))


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my.tx", "no such file or folder; did you mean my.txt?"),
        ("corpus/trian.txt", "no such file or folder; did you mean corpus/train.txt?"),
        ("corpsu/train.txt", "no such file or folder; did you mean corpus?"),
        ("turkis", "no such file or folder; did you mean turkish?"),
        ("data/*.txt", "no file matches"),
        ("pictures", "the folder holds no text (.txt, .text, .md, .rst, .jsonl, "),
    ],
)
def test_names_without_a_file(name: str, message: str) -> None:
    """A similar name is suggested."""
    write("my.txt", "a")
    write("corpus/train.txt", "a")
    write("pictures/a.png", b"\x89PNG")
    for open_data in (open_texts, open_pairs):
        with refused(f"{name}: {message}", FileNotFoundError):
            open_data([name])


def test_a_name_without_a_suggestion() -> None:
    with pytest.raises(FileNotFoundError, match=r"^/nowhere/at/all: no such file or folder$"):
        open_texts(["/nowhere/at/all"])


@pytest.mark.parametrize("file", ["model.safetensors", "metrics.jsonl"])
def test_an_output_folder(file: str) -> None:
    write(f"runs/mine/{file}", "{}")
    with refused("runs/mine: this is the output folder of a training, not data"):
        open_texts(["runs/mine"])


def test_nothing_named() -> None:
    for data in ([], [""]):
        with refused("data: name at least one file, folder, glob, - or one of python, turkish"):
            open_texts(data)


def test_nothing_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with refused("-: nothing is piped in; write for example: cat my.txt | qkv ... --data -"):
        open_texts(["-"])


@pytest.mark.parametrize(
    ("open_data", "name", "message"),
    [
        (open_texts, "turkish", "turkish holds pairs, not texts; a file of this name is ./turkish"),
        (open_pairs, "python:valid", "python holds texts, not pairs"),
        (open_pairs, "turkish:dev", "expected one of turkish:train, turkish:valid, turkish:test"),
        (open_texts, "python:test", "expected one of python:train, python:valid"),
    ],
)
def test_embedded_sources(open_data: Any, name: str, message: str) -> None:
    """The content must be of the right kind, and the split must exist."""
    with refused(f"{name}: {message}"):
        open_data([name])


def test_conllu_is_not_read_as_text() -> None:
    with refused(
        "a.conllu: CoNLL-U holds tagged words (finetune --task tag), not texts or a table"
    ):
        list(open_texts([write("a.conllu", "1\ta\n")]))


# Files


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(content: str) -> None:
    with refused("a.txt: the file is empty"):
        list(open_texts([write("a.txt", content)]))
    write("folder/a.txt", content)
    write("folder/b.txt", content)
    with refused("folder (2 files): all 2 files are empty"):
        list(open_texts(["folder"]))


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.tsv.xz"]
)
def test_an_empty_table(name: str) -> None:
    with refused(f"{name}: the file has no rows"):
        list(open_texts([write(name, "")]))


def test_a_table_with_only_a_header() -> None:
    with refused("a.csv: the file has no rows"):
        list(open_texts([write("a.csv", "text,year\n")]))


def test_empty_parallel_files() -> None:
    with refused("a.en and a.de: the files are empty"):
        list(open_pairs([write("a.en", ""), write("a.de", "")]))


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.jsonl", "a.csv", "a.txt.gz"])
def test_bad_encoding(name: str) -> None:
    content = b"text\nna\xc3\xafve\nna\xefve\n"
    write(name, gzip.compress(content) if name.endswith(".gz") else content)
    if name == "a.jsonl":
        content = b'{"text": "a"}\n{"text": "b"}\n{"text": "na\xefve"}\n'
        write(name, content)
    with refused(f"{name}:3: byte 0xef is not UTF-8; convert the file, for example with iconv"):
        list(open_texts([name]))


def test_bad_encoding_far_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.sources.files.BLOCK", 64)
    write("a.txt", b"a line\r\n" * 1000 + b"\xff\n" + b"a line\n" * 1000)
    with refused("a.txt:1001: byte 0xff is not UTF-8"):
        list(open_texts(["a.txt"]))


def test_a_character_cut_off_at_the_end_of_a_file() -> None:
    with refused("a.txt:2: byte 0xf0 is not UTF-8"):
        list(open_texts([write("a.txt", "one\ntwo 🙂".encode()[:-1])]))


def test_other_encodings_and_binary_files() -> None:
    with refused(
        "a.txt:1: this is UTF-16; save it as UTF-8, for example with iconv -f utf-16 -t utf-8"
    ):
        list(open_texts([write("a.txt", "text".encode("utf-16"))]))
    with refused("a.bin:2: there is a zero byte; this is not a file of text"):
        list(open_texts([write("a.bin", b"a\n\x00\xff")]))


@pytest.mark.parametrize(
    ("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress)]
)
def test_a_damaged_compressed_file(name: str, pack: Any) -> None:
    whole = pack("".join(f"line {number}\n" for number in range(10_000)).encode())
    with refused(f"{name}: the compressed file ends too early", OSError):
        list(open_texts([write(name, whole[: len(whole) // 2])]))
    kind = name[-3:]
    with refused(f"{name}: not a {kind} file, or a damaged one (", OSError):
        list(open_texts([write(name, "plain text")]))
    middle = len(whole) // 2
    with refused(f"{name}: not a {kind} file, or a damaged one (", OSError):
        list(open_texts([write(name, whole[:middle] + bytes(20) + whole[middle + 20 :])]))


def test_a_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "a")

    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    source = open_texts(["a.txt"])
    monkeypatch.setattr(Path, "open", deny)
    with refused("a.txt: no permission to read it", PermissionError):
        list(source)


# Tables


@pytest.mark.parametrize(("name", "tab"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_ragged_rows(name: str, tab: str) -> None:
    rows = [["text", "year"], ["a", "1"], ["b"], ["c", "2"]]
    write(name, "\n".join(tab.join(row) for row in rows))
    with refused(f"{name}:3: 1 field, expected 2 as in line 1"):
        list(open_texts([name]))
    rows[2] = ["b", "2", "c"]
    write(name, "\n".join(tab.join(row) for row in rows))
    with refused(f"{name}:3: 3 fields, expected 2 as in line 1"):
        list(open_texts([name]))


def test_line_numbers_of_a_csv_count_the_lines_inside_fields() -> None:
    write("a.csv", 'text,year\n"one\ntwo\nthree",1\n\nb\n')
    with refused("a.csv:6: 1 field, expected 2 as in line 1"):
        list(open_texts(["a.csv"]))


def test_quotes_that_never_end() -> None:
    with refused("a.csv:3: a quoted field never ends"):
        list(open_texts([write("a.csv", 'text,year\na,1\n"b,2\nc,3\n')]))
    with refused("a.csv:2: not CSV ("):
        list(open_texts([write("a.csv", 'text,year\n"a"b,1\n')]))


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.tsv", "titel\tbody\na\tb\n", "a.tsv:1"),
        ("a.csv", "titel,body\na,b\n", "a.csv:1"),
        ("a.jsonl", '\n{"titel": "a", "body": "b"}\n', "a.jsonl:2"),
    ],
)
def test_a_missing_column(name: str, content: str, where: str) -> None:
    write(name, content)
    with refused(f"{where}: no column 'text'; the columns are titel, body"):
        list(open_texts([name]))
    with refused(f"{where}: no column 'title'; did you mean titel?"):
        list(open_texts([name], column="title"))
    with refused(f"{where}: no column 'en'; the columns are titel, body"):
        list(open_pairs([name], columns=("en", "de")))
    with refused(f"{where}: no column '3'; the columns are titel, body"):
        list(open_texts([name], column="3"))


def test_a_row_of_json_without_the_column() -> None:
    with refused("a.jsonl:2: no column 'text'; it has title"):
        list(open_texts([write("a.jsonl", '{"text": "a"}\n{"title": "b"}\n')]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "b"', "invalid JSON at column 13 (Expecting ',' delimiter)"),
        ("b", "invalid JSON at column 1 (Expecting value)"),
        ('["b"]', 'expected an object such as {"text": ...}, not a list'),
        ('"b"', 'expected an object such as {"text": ...}, not a string'),
        ('{"text": 3}', "text: expected a string, not the number 3"),
        ('{"text": null}', "text: expected a string, not null"),
        ('{"text": ["b"]}', "text: expected a string, not a list"),
        ('{"text": {"b": 1}}', "text: expected a string, not an object"),
        ('{"text": true}', "text: expected a string, not true or false"),
        ('{"text": "a \\ud83d"}', "\\ud83d is only half of a character"),
        ('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", "JSON nested too deeply"),
    ],
)
def test_bad_json(line: str, message: str) -> None:
    with refused(f"a.jsonl:2: {message}"):
        list(open_texts([write("a.jsonl", '{"text": "a"}\n' + line + "\n")]))


def test_a_row_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 2 << 20)
    with refused("a.jsonl:2: a line of more than 2 MB; expected one row per line in a.jsonl"):
        list(open_texts([write("a.jsonl", '{"text": "a"}\n{"text": "' + "b" * (4 << 20) + '"}\n')]))


def test_a_damaged_parquet_file() -> None:
    with refused("a.parquet: not a Parquet file, or a damaged one (", OSError):
        list(open_texts([write("a.parquet", "plain text, and long enough")]))


def test_parquet_columns() -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None], "year": [1, 2]}), "a.parquet")
    with refused("a.parquet, row 2: text: expected a string, not null"):
        list(open_texts(["a.parquet"]))
    with refused("a.parquet: no column 'body'; the columns are text, year"):
        list(open_texts(["a.parquet"], column="body"))


def test_parquet_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = 'a.parquet: the package pyarrow is not installed: pip install "qkv[parquet]"'
    with refused(message, ImportError):
        list(open_texts([write("a.parquet", "x")]))


# Pairs


def test_parallel_files_of_different_length() -> None:
    write("a.en", "one\ntwo\nthree\n")
    write("a.de", "eins\nzwei\n")
    with refused("a.en has 3 lines and a.de 2; parallel files have the same number"):
        list(open_pairs(["a.en", "a.de"]))
    with refused("a.de has 2 lines and a.en 3; parallel files have the same number"):
        list(open_pairs(["a.de", "a.en"]))


def test_texts_that_are_not_pairs() -> None:
    for name in ("a.txt", "b.txt", "c.txt", "d/a.en", "d/a.txt"):
        write(name, "a")
    write("e.tsv", "a\tb")
    expected = (
        ": expected two parallel files of text, the source first, each by its own name, or tables "
    )
    for data in (
        ["a.txt"],
        ["a.txt", "b.txt", "c.txt"],
        ["d"],
        ["[ab].txt"],
        ["a.txt", "b.txt", "e.tsv"],
    ):
        with pytest.raises(ValueError, match=expected):
            open_pairs(data)


def test_pairs_of_other_than_two_columns() -> None:
    with refused("a.tsv:1: 3 columns, expected two; name the two that are the pair"):
        list(open_pairs([write("a.tsv", "a\tb\tc\n")]))
    with refused("a.tsv:1: 1 columns, expected two"):
        list(open_pairs([write("a.tsv", "a b\n")]))
