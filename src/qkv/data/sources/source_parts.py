"""Parts of a data source: a file, two parallel files or a Hugging Face dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar

from qkv.data.sources.files import File
from qkv.data.sources.formats import Choose, Row, read_rows
from qkv.data.sources.hub import HubDataset
from qkv.data.sources.lines import DocumentPart, file_pieces, read_lines

Item = TypeVar("Item")
Items = Callable[[list[Any], str], Iterator[Item]]
"""The items of a row; the second argument is its file and line, for errors."""


@dataclass(frozen=True)
class Part(Generic[Item]):
    """A part of a source, which can be read again and again."""

    name: str
    read: Callable[[], Iterator[Item]]
    fingerprint: Callable[[], dict[str, str]]
    """The checksums of its content, by name."""
    if_empty: str | None = "the file is empty"
    """The error if it has no items; None if it may be empty."""


@dataclass(frozen=True)
class RowReader(Generic[Item]):
    """How items are made of the rows of a table."""

    choose: Choose
    items: Items[Item]
    columns: Any
    """Whatever the choice of columns depends on; it is part of the fingerprint."""


def file_part(
    file: File, read: Callable[[], Iterator[Item]], empty: str = "the file is empty", **columns: Any
) -> Part[Item]:
    """A file; with `columns=`, those that are read are part of the fingerprint."""

    def fingerprint() -> dict[str, str]:
        checksums = {file.name: file.sha256()}
        for name, value in columns.items():
            checksums[f"{name} of {file.name}"] = json.dumps(value)

        return checksums

    return Part(file.name, read, fingerprint, None if file.from_pattern else empty)


def text_part(file: File) -> Part[DocumentPart]:
    """A file of plain text as one document."""

    def read() -> Iterator[DocumentPart]:
        pieces = file_pieces(file)
        first = next(pieces)
        if first.ends and not first.text.strip():
            return iter(())

        return chain([first], pieces)

    return file_part(file, read)


def table_part(file: File, rows: RowReader[Item]) -> Part[Item]:
    """The rows of a table."""

    def read() -> Iterator[Item]:
        return row_items(read_rows(file, rows.choose), rows.items, file.at)

    return file_part(file, read, "the file has no rows", columns=rows.columns)


def hub_part(item: str, rows: RowReader[Item]) -> Part[Item]:
    """The rows of a Hugging Face dataset."""
    data = HubDataset(item)

    def fingerprint() -> dict[str, str]:
        return {item: data.fingerprint(), f"columns of {item}": json.dumps(rows.columns)}

    return Part(
        item,
        lambda: row_items(data.rows(rows.choose), rows.items, data.at),
        fingerprint,
        "the data set has no rows",
    )


def row_items(rows: Iterator[Row], items: Items[Item], at: Callable[[int], str]) -> Iterator[Item]:
    """The items of all rows."""
    for number, row in rows:
        yield from items(row, at(number))


def parallel_part(files: list[File], other_parts: bool) -> Part[tuple[str, str]]:
    """Two parallel files of text as pairs."""
    if other_parts or len(files) != 2 or any(file.from_pattern for file in files):
        names = ", ".join(file.name for file in files[:3])
        raise ValueError(
            f"{names}: expected two parallel files of text, the source first, each by its own "
            "name, or tables (.tsv, .csv, .jsonl, .parquet) with two columns"
        )

    source, target = files

    def fingerprint() -> dict[str, str]:
        return {
            f"source {source.name}": source.sha256(),
            f"target {target.name}": target.sha256(),
        }

    return Part(
        f"{source.name} and {target.name}",
        lambda: parallel_lines(source, target),
        fingerprint,
        "the files are empty",
    )


def parallel_lines(source: File, target: File) -> Iterator[tuple[str, str]]:
    """Pairs of lines; raises if the files have different numbers of lines."""
    sources = 0
    targets = 0
    for line, translation in zip_longest(read_lines(source), read_lines(target)):
        sources += line is not None
        targets += translation is not None
        if sources == targets:
            pair = (line[1].strip(), translation[1].strip())
            if all(pair):
                yield pair

    if sources != targets:
        raise ValueError(
            f"{source.name} has {sources:,} lines and {target.name} {targets:,}; "
            "parallel files have the same number"
        )
