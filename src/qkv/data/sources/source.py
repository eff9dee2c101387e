"""Data sources: texts, pairs or rows from named files, streamed and never held in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, get_args

from qkv.data.embedded import python_library, turkish
from qkv.data.sources.files import File, find_files
from qkv.data.sources.formats import as_string
from qkv.data.sources.lines import DocumentPart, text_pieces
from qkv.data.sources.parts import (
    Item,
    Part,
    hub_part,
    library_part,
    parallel_part,
    table_part,
    text_part,
    turkish_part,
)

SPLITS: dict[str, tuple[str, ...]] = {
    "python": get_args(python_library.Split),
    "turkish": get_args(turkish.Split),
}
"""The splits of the embedded sources; a file of such a name is written ./python."""


class Source(Generic[Item]):
    """The items of all parts in order; it can be iterated again and again."""

    def __init__(self, name: str, parts: Sequence[Part[Item]]) -> None:
        self.name = name
        self.parts = parts

    def __iter__(self) -> Iterator[Item]:
        total = 0
        for part in self.parts:
            before = total
            for item in part.read():
                total += 1
                yield item

            if total == before and part.if_empty:
                raise ValueError(f"{part.name}: {part.if_empty}")

        if not total:
            raise ValueError(f"{self.name}: all {len(self.parts)} files are empty")

    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of each file by name, in order, and the columns that are read."""
        fingerprints: dict[str, str] = {}
        for part in self.parts:
            fingerprints |= part.fingerprint()

        return fingerprints


class TextSource(Source[DocumentPart]):
    """Documents, each in one part or more: a file of plain text, or a row of a table."""


class PairSource(Source[tuple[str, str]]):
    """Sentences and their translations, stripped; pairs with an empty side are left out."""


# Opening


def open_texts(data: Sequence[str | Path], *, column: str = "text") -> TextSource:
    """Texts for a language model; `column` names the text in .jsonl, .csv, .tsv and .parquet."""

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        return (column,)

    def texts(row: list[Any], where: str) -> Iterator[DocumentPart]:
        text = as_string(row[0], column, where)
        if not text or text.isspace():
            return iter(())

        return text_pieces(text)

    parts: list[Part[DocumentPart]] = []

    for item in named(data):
        if embedded := split_of(item, "python", "texts"):
            parts.append(library_part(embedded))
        elif item.startswith("hf:"):
            parts.append(hub_part(item, choose, texts, column))
        else:
            for file in find_files(item, piped="text"):
                if file.format == "text":
                    parts.append(text_part(file))
                else:
                    parts.append(table_part(file, choose, texts, column))

    return TextSource(title(data, parts), once(parts))


def open_pairs(data: Sequence[str | Path], *, columns: tuple[str, str] | None = None) -> PairSource:
    """Sentences and their translations: two parallel files of text, or tables with two columns.

    A .tsv or .csv file has a header if columns are named, or if its first line is "source" and
    "target".
    """

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        if columns is not None:
            return columns
        if {"source", "target"} <= set(names):
            return ("source", "target")
        if len(names) != 2:
            raise ValueError(
                f"{where}: {len(names)} columns, expected two; "
                "name the two that are the pair (--columns)"
            )

        return ("1", "2")

    def pairs(row: list[Any], where: str) -> Iterator[tuple[str, str]]:
        source = as_string(row[0], "source", where).strip()
        target = as_string(row[1], "target", where).strip()
        if not source or not target:
            return iter(())

        return iter([(source, target)])

    parts: list[Part[tuple[str, str]]] = []
    texts: list[File] = []

    for item in named(data):
        if embedded := split_of(item, "turkish", "pairs"):
            parts.append(turkish_part(embedded))
        elif item.startswith("hf:"):
            parts.append(hub_part(item, choose, pairs, columns))
        else:
            for file in tables(find_files(item, piped="tsv")):
                if file.format == "text":
                    texts.append(file)
                else:
                    parts.append(table_part(file, choose, pairs, columns))

    if texts:
        parts.append(parallel_part(texts, other_parts=bool(parts)))

    return PairSource(title(data, parts), once(parts))


def open_rows(data: Sequence[str | Path], columns: Sequence[str]) -> Source[dict[str, Any]]:
    """Rows of tables as values by column, unchanged; evaluation tasks name their columns."""

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        return tuple(columns)

    def rows(row: list[Any], where: str) -> Iterator[dict[str, Any]]:
        return iter([dict(zip(columns, row, strict=True))])

    parts: list[Part[dict[str, Any]]] = []

    for item in named(data):
        split_of(item, "", "rows of a table")
        if item.startswith("hf:"):
            parts.append(hub_part(item, choose, rows, list(columns)))
            continue

        for file in tables(find_files(item, piped="jsonl")):
            if file.format == "text":
                raise ValueError(
                    f"{file.name}: expected a table (.jsonl, .csv, .tsv or .parquet), "
                    "not plain text"
                )

            parts.append(table_part(file, choose, rows, list(columns)))

    return Source(title(data, parts), once(parts))


# Names


def named(data: Sequence[str | Path]) -> list[str]:
    """The names of data as strings; one name counts as a list."""
    if isinstance(data, str | Path):
        data = [data]

    items = list(map(str, data))
    if not items or not all(items):
        raise ValueError(
            "data: name at least one file, folder, glob, - or one of " + ", ".join(SPLITS)
        )

    return items


def split_of(item: str, wanted: str, what: str) -> str | None:
    """The split of an embedded source; None for any other name."""
    name, _, split = item.partition(":")
    if name not in SPLITS:
        return None
    if name != wanted:
        content = "texts" if name == "python" else "pairs"
        raise ValueError(
            f"{item}: {name} holds {content}, not {what}; a file of this name is ./{name}"
        )

    split = split or "train"
    if split not in SPLITS[name]:
        known = ", ".join(f"{name}:{split}" for split in SPLITS[name])
        raise ValueError(f"{item}: expected one of {known}")

    return split


def title(data: Sequence[str | Path], parts: Sequence[Part[Any]]) -> str:
    """The name of a source for messages."""
    if len(parts) == 1:
        return parts[0].name

    items = named(data)
    name = ", ".join(items)
    if len(items) > 3:
        name = f"{items[0]} and {len(items) - 1} more"
    if len(parts) > len(items):
        name = f"{name} ({len(parts)} files)"

    return name


def once(parts: Sequence[Part[Item]]) -> list[Part[Item]]:
    """The parts without duplicates: a file named twice, by a glob and by itself, is read once."""
    first: dict[str, Part[Item]] = {}
    for part in parts:
        first.setdefault(os.path.abspath(part.name), part)

    return list(first.values())


def tables(files: list[File]) -> list[File]:
    """The files without the texts that lie beside tables in a folder, such as a README.md."""
    chosen = [file for file in files if file.format != "text" or not file.from_pattern]
    return chosen or files
