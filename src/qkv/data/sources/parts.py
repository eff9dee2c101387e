"""The parts of a source: a file, two parallel files, an embedded source, a data set of the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from qkv.data.embedded import python_library, turkish
from qkv.data.sources.files import File
from qkv.data.sources.formats import Choose, Row, read_rows
from qkv.data.sources.hub import HubDataset
from qkv.data.sources.lines import DocumentPart, file_pieces, lines

Item = TypeVar("Item")
Items = Callable[[list[Any], str], Iterator[Item]]
"""What a row gives; the second argument is its place, for an error."""


@dataclass(frozen=True)
class Part(Generic[Item]):
    name: str
    read: Callable[[], Iterator[Item]]
    fingerprint: Callable[[], dict[str, str]]
    if_empty: str | None = "the file is empty"
    """What to say then; nothing of a file that was found in a folder."""


def text_part(file: File) -> Part[DocumentPart]:
    def read() -> Iterator[DocumentPart]:
        pieces = file_pieces(file)
        first = next(pieces)
        if first.ends and not first.text.strip():
            return iter(())

        return chain([first], pieces)

    return Part(
        file.name,
        read,
        lambda: {file.name: file.sha256()},
        None if file.found else "the file is empty",
    )


def table_part(file: File, choose: Choose, items: Items[Item], columns: Any) -> Part[Item]:
    def fingerprint() -> dict[str, str]:
        return {file.name: file.sha256(), f"columns of {file.name}": json.dumps(columns)}

    if_empty = None if file.found else "the file has no rows"
    return Part(
        file.name, lambda: each(read_rows(file, choose), items, file.at), fingerprint, if_empty
    )


def hub_part(item: str, choose: Choose, items: Items[Item], columns: Any) -> Part[Item]:
    data = HubDataset(item)

    def fingerprint() -> dict[str, str]:
        return {item: data.fingerprint(), f"columns of {item}": json.dumps(columns)}

    return Part(
        item,
        lambda: each(data.rows(choose), items, data.at),
        fingerprint,
        "the data set has no rows",
    )


def each(rows: Iterator[Row], items: Items[Item], at: Callable[[int], str]) -> Iterator[Item]:
    for number, row in rows:
        yield from items(row, at(number))


def parallel_part(files: list[File], other_parts: bool) -> Part[tuple[str, str]]:
    names = ", ".join(file.name for file in files[:3])
    if other_parts or len(files) != 2 or any(file.found for file in files):
        raise ValueError(
            f"{names}: expected two parallel files of text, the source first, each by its own name, or tables "
            "(.tsv, .csv, .jsonl, .parquet) with two columns"
        )

    def fingerprint() -> dict[str, str]:
        return {
            f"source {files[0].name}": files[0].sha256(),
            f"target {files[1].name}": files[1].sha256(),
        }

    name = f"{files[0].name} and {files[1].name}"

    return Part(name, lambda: parallel(*files), fingerprint, "the files are empty")


def parallel(source: File, target: File) -> Iterator[tuple[str, str]]:
    """Line by line."""
    sources, targets = lines(source), lines(target)
    number = 0

    for number, line in sources:
        translation = next(targets, None)
        if translation is None:
            rest = sum(1 for _ in sources)
            raise ValueError(
                f"{source.name} has {number + rest:,} lines and {target.name} {number - 1:,}; "
                "parallel files have the same number"
            )

        pair = (line.strip(), translation[1].strip())
        if all(pair):
            yield pair

    if rest := sum(1 for _ in targets):
        raise ValueError(
            f"{source.name} has {number:,} lines and {target.name} {number + rest:,}; "
            "parallel files have the same number"
        )


def library_part(split: str) -> Part[DocumentPart]:
    def read() -> Iterator[DocumentPart]:
        return (DocumentPart(text, True) for _, text in python_library.modules(split))  # type: ignore[arg-type]

    return embedded_part(f"python:{split}", read)


def turkish_part(split: str) -> Part[tuple[str, str]]:
    return embedded_part(f"turkish:{split}", lambda: iter(turkish.pairs(split)))  # type: ignore[arg-type]


def embedded_part(name: str, read: Callable[[], Iterator[Item]]) -> Part[Item]:
    return Part(name, read, lambda: {name: digest(read())})


def digest(items: Iterable[Any]) -> str:
    made = hashlib.sha256()
    for item in items:
        made.update(json.dumps(item).encode())

    return made.hexdigest()
