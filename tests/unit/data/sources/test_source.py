"""Every file format, and every way to name files, gives the same texts and pairs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import DocumentPart, open_pairs, open_texts
from qkv.data.sources import lines as lines_module
from qkv.data.sources.lines import LONGEST_PIECE, text_pieces

TEXTS = ["Attention is all you need.\n", 'a "quoted", text\nof two lines', "ğüşıöç — 戦場 🙂"]
PAIRS = [("cats chase mice", "kediler fareleri kovalar"), ('the "cat"', "kedi, o")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "wb") as file:
        file.write(data)
    return name


def table(name: str, columns: dict[str, list[Any]]) -> str:
    """The rows written in the format of the name."""
    rows = list(zip(*columns.values(), strict=True))
    if ".jsonl" in name:
        return write(
            name, "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        )
    if ".parquet" in name:
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        return write(name, buffer.getvalue())
    if ".tsv" in name:
        return write(
            name, "".join("\t".join(map(str, row)) + "\n" for row in [tuple(columns), *rows])
        )
    text = io.StringIO()
    csv.writer(text).writerows([tuple(columns), *rows])
    return write(name, text.getvalue())


def documents(source: Any) -> list[str]:
    texts = []
    text = ""
    for piece in source:
        text += piece.text
        if piece.ends:
            texts.append(text)
            text = ""
    assert not text
    return texts


# Formats


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.en", "noending"])
def test_a_text_file_is_one_document(name: str, ending: str) -> None:
    assert list(open_texts([write(name + ending, "one\n\ntwo\n")])) == [
        DocumentPart("one\n\ntwo\n", True)
    ]


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_a_row_is_one_document(kind: str, ending: str) -> None:
    columns = {"title": ["x", "y", "z"], "text": TEXTS, "year": [1, 2, 3]}
    name = table("a" + kind + ending, columns)
    assert documents(open_texts([name])) == TEXTS
    assert documents(open_texts([name], column="title")) == ["x", "y", "z"]


def test_a_row_of_a_tsv_is_one_document() -> None:
    assert documents(open_texts([table("a.tsv", {"id": [1, 2], "text": ['it"s', "b"]})])) == [
        'it"s',
        "b",
    ]


def test_a_column_inside_a_column() -> None:
    inner = [{"en": "a", "de": "b"}, {"en": "c", "de": "d"}]
    for name in (
        table("a.jsonl", {"translation": inner}),
        table("a.parquet", {"translation": inner}),
    ):
        source = open_pairs([name], columns=("translation.en", "translation.de"))
        assert list(source) == [("a", "b"), ("c", "d")]


def test_empty_rows_are_left_out() -> None:
    assert documents(open_texts([table("a.jsonl", {"text": ["a", "", " \n", "b"]})])) == ["a", "b"]
    assert documents(open_texts([write("b.jsonl", '\n{"text": "a"}\n\n  \n{"text": "b"}')])) == [
        "a",
        "b",
    ]
    assert list(open_pairs([write("a.tsv", "a\tb\n\nc\t \n\tx\nd\te\n")])) == [
        ("a", "b"),
        ("d", "e"),
    ]


def test_line_ends_and_the_mark_of_windows() -> None:
    assert documents(open_texts([write("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n")])) == ["one\ntwo\n"]
    assert documents(open_texts([write("a.csv", b'\xef\xbb\xbftext\r\n"one\r\ntwo"\r\n')])) == [
        "one\ntwo"
    ]
    assert list(open_pairs([write("a.tsv", b"a\tb\r\nc\td\r\n")])) == [("a", "b"), ("c", "d")]


def test_only_newlines_end_lines() -> None:
    """The other line ends of str.splitlines do not split lines, so parallel files stay parallel."""
    write("a.en", "one\u2028still one\x0bstill\x85\ntwo\n")
    write("a.de", "eins\nzwei")
    assert list(open_pairs(["a.en", "a.de"])) == [
        ("one\u2028still one\x0bstill", "eins"),
        ("two", "zwei"),
    ]


# Pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"PIECE": 40, "LONGEST_PIECE": 100, "NEAR": 30}.items():
        monkeypatch.setattr(lines_module, name, size)
    monkeypatch.setattr("qkv.data.sources.files.BLOCK", 16)


@pytest.mark.usefixtures("small_pieces")
@given(st.text(alphabet="ab \nğ🙂\r", max_size=400))
def test_pieces_are_the_text(text: str) -> None:
    if not text.strip():
        return
    pieces = list(open_texts([write("a.txt", text)]))
    assert "".join(piece.text for piece in pieces) == text.replace("\r\n", "\n")
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(piece.text for piece in pieces)
    assert max(len(piece.text) for piece in pieces) <= 100 + 16 + 100
    row = text.replace("\r\n", "\n")
    assert "".join(piece.text for piece in text_pieces(row)) == row


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_cut_before_a_line_that_begins_with_a_word() -> None:
    pieces = list(open_texts([write("a.txt", "def f():\n    return 1\n\n" * 20)]))
    assert len(pieces) > 5
    assert all(piece.text.startswith("def") and piece.text.endswith("\n") for piece in pieces)


@pytest.mark.usefixtures("small_pieces")
def test_a_line_without_end_is_cut_before_a_space() -> None:
    pieces = list(open_texts([write("a.txt", "word " * 100 + "end")]))
    assert len(pieces) > 3
    assert all(
        piece.text.startswith(" word") and piece.text.endswith("word") for piece in pieces[1:-1]
    )


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_pieces_do_not_depend_on_compression(ending: str) -> None:
    text = "".join(f"line {number}\n" for number in range(200))
    plain = list(open_texts([write("a.txt", text)]))
    assert len(plain) > 10
    assert list(open_texts([write("a.txt" + ending, text)])) == plain


def test_a_large_file_is_never_held_in_memory() -> None:
    """Reading large files takes at most 40 MB more memory than reading a small one."""
    write("small.txt", "word " * 10)
    with open("large.txt", "w") as file:
        for _ in range(200):
            file.write("The quick brown fox jumps over the lazy dog.\n" * 20_000)
    with open("long.txt", "w") as file:  # one line
        for _ in range(200):
            file.write("The quick brown fox. " * 20_000)
    code = (
        "import resource\n"
        "from qkv.data import open_texts\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "size = lambda name: sum(len(piece.text) for piece in open_texts([name]))\n"
        "size('small.txt'); before = peak()\n"
        "assert size('large.txt') == 200 * 20_000 * 45\n"
        "assert size('long.txt') == 200 * 20_000 * 21\n"
        "print(peak() - before)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert int(process.stdout) < 40


def test_a_long_row_comes_in_pieces() -> None:
    text = "a line of text\n" * 400_000
    pieces = list(open_texts([table("a.jsonl", {"text": [text, "short"]})]))
    assert len(pieces) > 5
    assert max(len(piece.text) for piece in pieces) < LONGEST_PIECE
    assert "".join(piece.text for piece in pieces[:-1]) == text
    assert pieces[-1] == DocumentPart("short", True)


# Names


def test_a_folder_is_read_by_name_and_to_its_depth() -> None:
    for name in (
        "c.txt",
        "a/z.txt.gz",
        "a/b/x.md",
        "b.tsv",
        ".hidden.txt",
        ".git/x.txt",
        "picture.png",
        "a/empty.txt",
    ):
        content = "text\nb.tsv\n" if name.endswith(".tsv") else name
        content = "" if "empty" in name else content
        write("data/" + name, content)
    source = open_texts(["data"])
    assert documents(source) == ["a/b/x.md", "a/z.txt.gz", "b.tsv", "c.txt"]
    assert source.name == "data (5 files)"


def test_output_folders_of_training_are_skipped() -> None:
    write("data/a.txt", "a")
    write("data/run/metrics.jsonl", "{}")
    write("data/run/notes.txt", "b")
    assert documents(open_texts(["data"])) == ["a"]


def test_a_readme_beside_tables_is_skipped() -> None:
    write("data/README.md", "# pairs")
    write("data/train.tsv", "a\tb\n")
    assert list(open_pairs(["data"])) == [("a", "b")]


@pytest.mark.parametrize("pattern", ["data/*.log", "data/**/*.log", "d?ta/[ab].log", "data/**"])
def test_globs(pattern: str) -> None:
    write("data/b.log", "b")
    write("data/a.log", "a")
    assert documents(open_texts([pattern])) == ["a", "b"]


def test_a_name_with_brackets_is_a_file_first() -> None:
    assert documents(open_texts([write("a[1].txt", "one")])) == ["one"]


def test_several_names_in_the_order_given_and_each_file_once() -> None:
    write("b.txt", "b")
    write("a.txt", "a")
    write("c.txt", "c")
    source = open_texts(["b.txt", "*.txt", "./b.txt"])
    assert documents(source) == ["b", "a", "c"]
    assert list(source.fingerprint()) == ["b.txt", "a.txt", "c.txt"]


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(
        "sys.stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False)
    )


def test_standard_input_is_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"some text\n")
    source = open_texts(["-"])
    assert documents(source) == documents(source) == ["some text\n"]
    assert source.fingerprint() == {"-": sha256(b"some text\n").hexdigest()}


def test_tables_through_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"a\tb\n")
    assert list(open_pairs(["-"])) == [("a", "b")]
    piped(monkeypatch, b'{"text": "a"}\n')
    assert documents(open_texts(["-.jsonl"])) == ["a"]


def test_a_pipe_with_a_name(tmp_path: Path) -> None:
    os.mkfifo("pipe")
    writer = subprocess.Popen(["sh", "-c", "printf 'through a pipe' > pipe"], cwd=tmp_path)
    source = open_texts(["pipe"])
    assert writer.wait() == 0
    assert documents(source) == documents(source) == ["through a pipe"]


def test_one_name_and_paths(tmp_path: Path) -> None:
    write("a.txt", "a")
    assert documents(open_texts("a.txt")) == ["a"]
    assert documents(open_texts([tmp_path / "a.txt"])) == ["a"]


# Pairs


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_parallel_files(ending: str) -> None:
    sources, targets = zip(*PAIRS, strict=True)
    write("train.en" + ending, "\n".join(sources) + "\n\nlone \n")
    write("train.tr" + ending, "\n".join(targets) + "\n\n tek\n")
    source = open_pairs(["train.en" + ending, "train.tr" + ending])
    assert list(source) == list(source) == [*PAIRS, ("lone", "tek")]
    assert source.name == f"train.en{ending} and train.tr{ending}"


@pytest.mark.parametrize(
    "kind", [".tsv", ".jsonl", ".csv", ".parquet", ".tsv.xz", ".csv.gz", ".parquet.xz"]
)
def test_pairs_of_a_table(kind: str) -> None:
    sources, targets = map(list, zip(*PAIRS, strict=True))
    name = table("a" + kind, {"id": [1, 2], "tr": targets, "en": sources})
    assert list(open_pairs([name], columns=("en", "tr"))) == PAIRS
    known = table("b" + kind, {"target": targets, "source": sources})
    assert list(open_pairs([known])) == PAIRS
    two = table("c" + kind, {"en": sources, "tr": targets})
    header = [("en", "tr")] if ".tsv" in kind or ".csv" in kind else []
    assert list(open_pairs([two])) == header + PAIRS


def test_columns_by_number_where_there_is_no_header() -> None:
    write("a.tsv", "17\tHello.\t19\tHallo.\n18\tYes.\t20\tJa.\n")
    assert list(open_pairs(["a.tsv"], columns=("2", "4"))) == [
        ("Hello.", "Hallo."),
        ("Yes.", "Ja."),
    ]


def test_quotes_of_a_tsv_are_characters() -> None:
    write("a.tsv", '"Yes\tJa\n"a" b\t"c"\n')
    assert list(open_pairs(["a.tsv"])) == [('"Yes', "Ja"), ('"a" b', '"c"')]


def test_several_tables() -> None:
    names = [write("a.tsv", "a\tb\n"), table("b.jsonl", {"source": ["c"], "target": ["d"]})]
    assert list(open_pairs(names)) == [("a", "b"), ("c", "d")]


def test_embedded_turkish() -> None:
    assert next(iter(open_pairs(["turkish:valid"]))) == (
        "cats chase mice",
        "kediler fareleri kovalar",
    )
    splits = [open_pairs([f"turkish:{split}"]) for split in ("train", "valid", "test")]
    assert [source.name for source in splits] == ["turkish:train", "turkish:valid", "turkish:test"]
    assert [sum(1 for _ in source) for source in splits] == [120_000, 2_000, 2_000]
    assert len({value for source in splits for value in source.fingerprint().values()}) == 3


# Fingerprints


def test_a_fingerprint_is_of_the_content() -> None:
    write("a.txt", "one")
    source = open_texts(["a.txt"])
    assert source.fingerprint() == {"a.txt": sha256(b"one").hexdigest()}
    write("a.txt", "two")
    assert source.fingerprint() == {"a.txt": sha256(b"two").hexdigest()}


def test_a_fingerprint_tells_columns_and_sides_apart() -> None:
    name = table("a.jsonl", {"text": ["a"], "title": ["b"]})
    prints = [
        open_texts([name]),
        open_texts([name], column="title"),
        open_pairs([name], columns=("text", "title")),
    ]
    write("a.en", "a")
    write("a.de", "b")
    prints += [open_pairs(["a.en", "a.de"]), open_pairs(["a.de", "a.en"])]
    assert len({json.dumps(source.fingerprint()) for source in prints}) == 5


# The hub


class Hub:
    """A fake of the package `datasets`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def load_dataset(self, name: str, config: str | None, split: str) -> Any:
        self.requests.append((name, config, split))
        if name == "missing":
            raise FileNotFoundError(
                "Dataset 'missing' doesn't exist on the Hub\nor cannot be accessed."
            )
        rows = {"text": ["a", "b"], "translation": [{"en": "a", "de": "x"}, {"en": "b", "de": "y"}]}

        def select(names: list[str]) -> Any:
            return SimpleNamespace(
                iter=lambda batch_size: iter([{name: rows[name] for name in names}])
            )

        return SimpleNamespace(column_names=list(rows), select_columns=select, _fingerprint="f1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub()
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


def test_a_data_set_of_the_hub(hub: Hub) -> None:
    source = open_texts(["hf:some/texts"])
    assert documents(source) == documents(source) == ["a", "b"]
    assert source.fingerprint()["hf:some/texts"] == "f1"
    pairs = open_pairs(["hf:wmt:de-en:test"], columns=("translation.en", "translation.de"))
    assert list(pairs) == [("a", "x"), ("b", "y")]
    open_texts(["hf:a:b"])
    open_texts(["hf:a:validation"])
    open_texts(["hf:a:train[:10%]"])
    assert hub.requests == [
        ("some/texts", None, "train"),
        ("wmt", "de-en", "test"),
        ("a", "b", "train"),
        ("a", None, "validation"),
        ("a", None, "train[:10%]"),
    ]


def test_what_the_hub_lacks(hub: Hub) -> None:
    message = r"hf:missing: cannot be loaded .*\(Dataset 'missing' doesn't exist on the Hub\)$"
    with pytest.raises(OSError, match=message):
        open_texts(["hf:missing"])
    with pytest.raises(ValueError, match="expected hf:name, hf:name:split"):
        open_texts(["hf:"])
    with pytest.raises(
        ValueError, match="hf:some: no column 'body'; the columns are text, translation"
    ):
        list(open_texts(["hf:some"], column="body"))


def test_without_the_package_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError,
        match=r'hf:some: the package datasets is not installed: pip install "qkv\[hub\]"',
    ):
        open_texts(["hf:some"])
