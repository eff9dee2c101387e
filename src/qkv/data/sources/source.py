"""Data sources: texts, pairs or rows from named files, streamed and never held in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

from qkv.data.sources.files import File, find_files
from qkv.data.sources.formats import as_string
from qkv.data.sources.lines import DocumentPart, text_pieces
from qkv.data.sources.named import NAMED_SOURCES, is_named, named_part
from qkv.data.sources.source_parts import (
    Item,
    Part,
    RowReader,
    hub_part,
    parallel_part,
    table_part,
    text_part,
)


class Source(Generic[Item]):
    """The items of all parts in order; it can be iterated again and again.

    A file named twice, by a glob and by itself, is one part.
    """

    def __init__(self, data: Sequence[str | Path], parts: Sequence[Part[Item]]) -> None:
        self.name = title(data, parts)
        paths: dict[str, Part[Item]] = {}
        for part in parts:
            paths.setdefault(os.path.abspath(part.name), part)

        self.parts = list(paths.values())

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

    rows = RowReader(choose, texts, column)

    def open_name(name: str) -> Iterator[Part[DocumentPart]]:
        for file in find_files(name, piped="text"):
            yield text_part(file) if file.format == "text" else table_part(file, rows)

    return TextSource(data, open_parts(data, "texts", rows, open_name))


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
        if source and target:
            yield source, target

    rows = RowReader(choose, pairs, columns)
    texts: list[File] = []

    def open_name(name: str) -> Iterator[Part[tuple[str, str]]]:
        for file in tables(find_files(name, piped="tsv")):
            if file.format == "text":
                texts.append(file)
            else:
                yield table_part(file, rows)

    parts = open_parts(data, "pairs", rows, open_name)
    if texts:
        parts.append(parallel_part(texts, other_parts=bool(parts)))

    return PairSource(data, parts)


def open_rows(data: Sequence[str | Path], columns: Sequence[str]) -> Source[dict[str, Any]]:
    """Rows of tables as values by column, unchanged; evaluation tasks name their columns."""

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        return tuple(columns)

    def values(row: list[Any], where: str) -> Iterator[dict[str, Any]]:
        yield dict(zip(columns, row, strict=True))

    rows = RowReader(choose, values, list(columns))

    def open_name(name: str) -> Iterator[Part[dict[str, Any]]]:
        for file in tables(find_files(name, piped="jsonl")):
            if file.format == "text":
                raise ValueError(
                    f"{file.name}: expected a table (.jsonl, .csv, .tsv or .parquet), "
                    "not plain text"
                )

            yield table_part(file, rows)

    return Source(data, open_parts(data, "rows of a table", rows, open_name))


def open_parts(
    data: Sequence[str | Path],
    what: str,
    rows: RowReader[Item],
    open_name: Callable[[str], Iterable[Part[Item]]],
    named: RowReader[Item] | None = None,
) -> list[Part[Item]]:
    """The parts of all names: registered data, Hugging Face datasets, and files by `open_name`.

    `named` reads the rows of registered data, if they differ from those of tables.
    """
    parts: list[Part[Item]] = []
    for item in as_names(data):
        if is_named(item):
            parts.append(named_part(item, what, (named or rows).items))
        elif item.startswith("hf:"):
            parts.append(hub_part(item, rows))
        else:
            parts += open_name(item)

    return parts


# Names


def as_names(data: Sequence[str | Path]) -> list[str]:
    """The names of data as strings; one name counts as a list."""
    if isinstance(data, str | Path):
        data = [data]

    items = list(map(str, data))
    if not items or not all(items):
        raise ValueError(
            "data: name at least one file, folder, glob, - or one of " + ", ".join(NAMED_SOURCES)
        )

    return items


def title(data: Sequence[str | Path], parts: Sequence[Part[Any]]) -> str:
    """The name of a source for messages."""
    if len(parts) == 1:
        return parts[0].name

    items = as_names(data)
    name = ", ".join(items)
    if len(items) > 3:
        name = f"{items[0]} and {len(items) - 1} more"
    if len(parts) > len(items):
        name = f"{name} ({len(parts)} files)"

    return name


def tables(files: list[File]) -> list[File]:
    """The files without the texts that lie beside tables in a folder, such as a README.md."""
    chosen = [file for file in files if file.format != "text" or not file.from_pattern]
    return chosen or files
