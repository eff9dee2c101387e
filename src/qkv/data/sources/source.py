"""What a person names as data, as texts or pairs: read one by one, again and again, never all held."""

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
"""The embedded sources; a file of this name is ./python."""


class Source(Generic[Item]):
    """All parts, one after the other. It can be iterated again."""

    def __init__(self, name: str, parts: Sequence[Part[Item]]) -> None:
        self.name, self.parts = name, parts

    def __iter__(self) -> Iterator[Item]:
        nothing = True
        for part in self.parts:
            empty = True
            for item in part.read():
                empty = nothing = False
                yield item

            if empty and part.if_empty:
                raise ValueError(f"{part.name}: {part.if_empty}")

        if nothing:
            raise ValueError(f"{self.name}: all {len(self.parts)} files are empty")

    def fingerprint(self) -> dict[str, str]:
        """The name of each file and the SHA-256 of its content, in order, and which columns are
        read.
        """
        return {name: value for part in self.parts for name, value in part.fingerprint().items()}


class TextSource(Source[DocumentPart]):
    """Documents, each in one or more pieces: a file of plain text is one, and so is a row of a
    table.
    """


class PairSource(Source[tuple[str, str]]):
    """Sentences and their translations, without spaces around them; a pair with an empty side is
    left out.
    """


# What a person calls


def open_texts(data: Sequence[str | Path], *, column: str = "text") -> TextSource:
    """Texts for a language model. `column` is where they stand in .jsonl, .csv, .tsv and .parquet."""

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        return (column,)

    def texts(row: list[Any], where: str) -> Iterator[DocumentPart]:
        text = as_string(row[0], column, where)
        return text_pieces(text) if text and not text.isspace() else iter(())

    parts: list[Part[DocumentPart]] = []

    for item in named(data):
        if embedded := split_of(item, "python", "texts"):
            parts.append(library_part(embedded))
        elif item.startswith("hf:"):
            parts.append(hub_part(item, choose, texts, column))
        else:
            for file in find_files(item, piped="text"):
                is_text = file.format == "text"
                parts.append(
                    text_part(file) if is_text else table_part(file, choose, texts, column)
                )

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
                f"{where}: {len(names)} columns, expected two; name the two that are the pair (--columns)"
            )

        return ("1", "2")

    def pairs(row: list[Any], where: str) -> Iterator[tuple[str, str]]:
        sides = (
            as_string(row[0], "source", where).strip(),
            as_string(row[1], "target", where).strip(),
        )
        return iter([sides] if all(sides) else [])

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
    """Rows of tables by the names of their columns, with values as they are: for tasks, which say
    what they need.
    """

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
                    f"{file.name}: expected a table (.jsonl, .csv, .tsv or .parquet), not plain text"
                )

            parts.append(table_part(file, choose, rows, list(columns)))

    return Source(title(data, parts), once(parts))


# Names


def named(data: Sequence[str | Path]) -> list[str]:
    items = [str(item) for item in ([data] if isinstance(data, str | Path) else data)]
    if not items or not all(items):
        raise ValueError(
            "data: name at least one file, folder, glob, - or one of " + ", ".join(SPLITS)
        )

    return items


def split_of(item: str, wanted: str, what: str) -> str | None:
    """The split of an embedded source; None where the name is of something else."""
    name, _, split = item.partition(":")
    if name not in SPLITS:
        return None
    if name != wanted:
        raise ValueError(
            f"{item}: {name} holds {'texts' if name == 'python' else 'pairs'}, not {what}; "
            f"a file of this name is ./{name}"
        )

    split = split or "train"
    if split not in SPLITS[name]:
        raise ValueError(
            f"{item}: expected one of {', '.join(f'{name}:{each}' for each in SPLITS[name])}"
        )

    return split


def title(data: Sequence[str | Path], parts: Sequence[Part[Any]]) -> str:
    items = named(data)
    if len(parts) == 1:
        return parts[0].name

    name = ", ".join(items) if len(items) <= 3 else f"{items[0]} and {len(items) - 1} more"
    return f"{name} ({len(parts)} files)" if len(parts) > len(items) else name


def once(parts: Sequence[Part[Item]]) -> list[Part[Item]]:
    """A file that is named twice, by a glob and by itself, is read once."""
    first: dict[str, Part[Item]] = {}
    for part in parts:
        first.setdefault(os.path.abspath(part.name), part)

    return list(first.values())


def tables(files: list[File]) -> list[File]:
    """Without what only lies beside the tables in a folder, such as a README.md."""
    found = [file for file in files if file.format != "text" or not file.found]
    return found or files
