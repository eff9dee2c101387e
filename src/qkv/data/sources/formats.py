"""Rows of .jsonl, .csv, .tsv and .parquet files: the chosen columns of each, with the number of its
line.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from qkv.data.sources.files import File
from qkv.data.sources.lines import LONGEST_LINE, lines

Row = tuple[int, list[Any]]
Choose = Callable[[list[str], str], tuple[str, ...]]
"""From the names of the columns, and the place they stand at for an error, to those that are
wanted.

A number such as "2" is the second column; if all are numbers, a .csv or .tsv file has no header.
"""


def read_rows(file: File, choose: Choose) -> Iterator[Row]:
    if file.format == "jsonl":
        return json_rows(file, choose)
    if file.format == "parquet":
        return parquet_rows(file, choose)
    if file.format == "conllu":
        raise ValueError(
            f"{file.name}: CoNLL-U holds tagged words (finetune --task tag), not texts or a table"
        )

    return table_rows(
        file, tsv_records(file) if file.format == "tsv" else csv_records(file), choose
    )


# Tables


def table_rows(
    file: File, records: Iterator[tuple[int, list[str]]], choose: Choose
) -> Iterator[Row]:
    first = next(records, None)
    if first is None:
        return

    top, names = first[0], [name.strip() for name in first[1]]
    wanted = choose(names, file.at(top))
    columns = columns_of(wanted, names, file.at(top))
    has_header = not all(name.isdigit() for name in wanted)
    target_positions = (
        [names.index(column) for column in columns]
        if has_header
        else [int(name) - 1 for name in wanted]
    )

    for number, fields in records if has_header else chain([first], records):
        if len(fields) != len(names):
            raise ValueError(
                f"{file.at(number)}: {count(fields)}, expected {len(names)} as in line {top}"
            )

        yield number, [fields[place] for place in target_positions]


def tsv_records(file: File) -> Iterator[tuple[int, list[str]]]:
    """A quotation mark is a character like any other, and a field ends at a tab or at the line's
    end.
    """
    return ((number, line.split("\t")) for number, line in lines(file) if line)


def csv_records(file: File) -> Iterator[tuple[int, list[str]]]:
    """With the number of the line each record begins at: a quoted field may have several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader = csv.reader((line + "\n" for _, line in lines(file)), strict=True)
    number = 1

    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = (
                "a quoted field never ends"
                if "unexpected end" in str(error)
                else f"not CSV ({error})"
            )
            raise ValueError(f"{file.at(number)}: {reason}") from None

        if fields:
            yield number, fields

        number = reader.line_num + 1


def count(fields: list[str]) -> str:
    return f"{len(fields)} field{'' if len(fields) == 1 else 's'}"


# Records with names


def json_rows(file: File, choose: Choose) -> Iterator[Row]:
    columns: list[str] | None = None
    for number, line in lines(file):
        if not line or line.isspace():
            continue

        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{file.at(number)}: invalid JSON at column {error.colno} ({error.msg})"
            ) from None
        except RecursionError:
            raise ValueError(f"{file.at(number)}: JSON nested too deeply") from None

        if not isinstance(record, dict):
            raise ValueError(
                f'{file.at(number)}: expected an object such as {{"text": ...}}, not {kind(record)}'
            )

        if columns is None:
            names = list(record)
            columns = columns_of(choose(names, file.at(number)), names, file.at(number))

        values = [inside(record, column, file.at(number)) for column in columns]
        if "\\u" in line:
            refuse_half_characters(values, file.at(number))

        yield number, values


def parquet_rows(file: File, choose: Choose) -> Iterator[Row]:
    try:
        arrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(
            f"{file.name}: Parquet is read with the package pyarrow: pip install pyarrow"
        ) from None

    number = 0
    with file.decompressed() as path:
        if path.stat().st_size == 0:
            return

        try:
            # A row group may be as large as the file: it is read page by page.
            with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as table:
                names = table.schema_arrow.names
                columns = columns_of(choose(names, file.name), names, file.name)
                outer = [
                    column if column in names else column.partition(".")[0] for column in columns
                ]
                for batch in table.iter_batches(
                    rows_at_once(table.metadata), columns=sorted(set(outer))
                ):
                    for record in batch.to_pylist():
                        number += 1
                        yield (
                            number,
                            [inside(record, column, file.at(number)) for column in columns],
                        )
        except (arrow.ArrowException, OSError) as error:
            raise OSError(
                f"{file.name}: not a Parquet file, or a damaged one ({first_line(error)})"
            ) from None


def rows_at_once(metadata: Any) -> int:
    """As many as make about four megabytes."""
    size = sum(
        metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)
    )
    return max(1, min(4096, (4 << 20) * metadata.num_rows // max(size, 1)))


# Columns and values


def columns_of(wanted: tuple[str, ...], names: list[str], where: str) -> list[str]:
    """The wanted columns by their names. A dot goes inside: translation.en is en in the column
    translation.
    """
    columns = []
    for name in wanted:
        if name in names or ("." in name and name.partition(".")[0] in names):
            columns.append(name)
        elif name.isdigit() and 1 <= int(name) <= len(names):
            columns.append(names[int(name) - 1])
        else:
            close = difflib.get_close_matches(name, names, n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"the columns are {', '.join(map(shortened, names))}"
            )
            raise ValueError(f"{where}: no column {name!r}; {hint}")

    return columns


def inside(record: dict[str, Any], column: str, where: str) -> Any:
    if column in record:
        return record[column]

    value: Any = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(
                f"{where}: no column {column!r}; it has {', '.join(map(shortened, record)) or 'none'}"
            )

        value = value[name]

    return value


def as_string(value: Any, column: str, where: str) -> str:
    if isinstance(value, str):
        return value

    raise ValueError(f"{where}: {column}: expected a string, not {kind(value)}")


def as_label(value: Any, where: str) -> str:
    """Labels are strings; numbers are written as in JSON."""
    if isinstance(value, str):
        if label := value.strip():
            return label

        raise ValueError(f"{where}: the label is empty")

    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: the label: expected a number that is finite, not {value}")
    if isinstance(value, bool | int | float):
        return json.dumps(value)

    raise ValueError(f"{where}: the label: expected a string or a number, not {kind(value)}")


def refuse_half_characters(values: list[Any], where: str) -> None:
    """JSON can write half of a character that takes two \\u, which is no text."""
    for value in values:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                half = value[error.start].encode("unicode-escape").decode()
                raise ValueError(f"{where}: {half} is only half of a character") from None


def kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }

    return names.get(
        type(value),
        f"the number {value}" if isinstance(value, int | float) else type(value).__name__,
    )


def shortened(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
