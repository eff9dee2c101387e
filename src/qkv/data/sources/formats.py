"""Rows of .jsonl, .csv, .tsv and .parquet files: chosen columns, with line numbers for errors."""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from qkv.data.sources.files import File
from qkv.data.sources.lines import LONGEST_LINE, read_lines
from qkv.imports import require

Row = tuple[int, list[Any]]
Choose = Callable[[list[str], str], tuple[str, ...]]
"""Chooses columns: called with the names of all columns and their place in the file, for errors.

A number such as "2" is the second column; if all are numbers, a .csv or .tsv file has no header.
"""


def read_rows(file: File, choose: Choose) -> Iterator[Row]:
    """The rows of a file, each with its number and the values of the chosen columns."""
    if file.format == "jsonl":
        return json_rows(file, choose)
    if file.format == "parquet":
        return parquet_rows(file, choose)
    if file.format == "conllu":
        raise ValueError(
            f"{file.name}: CoNLL-U holds tagged words (finetune --task tag), not texts or a table"
        )

    if file.format == "tsv":
        return table_rows(file, tsv_records(file), choose)

    return table_rows(file, csv_records(file), choose)


# Tables


def table_rows(
    file: File, records: Iterator[tuple[int, list[str]]], choose: Choose
) -> Iterator[Row]:
    """The chosen columns of records, the first of which may be the header."""
    first = next(records, None)
    if first is None:
        return

    top, header = first
    names = list(map(str.strip, header))
    wanted = choose(names, file.at(top))
    columns = columns_of(wanted, names, file.at(top))

    # Numbered columns mean that there is no header: the first record is a row.
    if all(map(str.isdigit, wanted)):
        records = chain([first], records)
        indices = [int(name) - 1 for name in wanted]
    else:
        indices = list(map(names.index, columns))

    for number, fields in records:
        if len(fields) != len(names):
            raise ValueError(
                f"{file.at(number)}: {count(fields)}, expected {len(names)} as in line {top}"
            )

        yield number, [fields[index] for index in indices]


def tsv_records(file: File) -> Iterator[tuple[int, list[str]]]:
    """Lines split at tabs; quotation marks have no meaning."""
    for number, line in read_lines(file):
        if line:
            yield number, line.split("\t")


def csv_records(file: File) -> Iterator[tuple[int, list[str]]]:
    """Records with the number of their first line; a quoted field may span several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader = csv.reader((line + "\n" for _, line in read_lines(file)), strict=True)
    number = 1

    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = f"not CSV ({error})"
            if "unexpected end" in str(error):
                reason = "a quoted field never ends"

            raise ValueError(f"{file.at(number)}: {reason}") from None

        if fields:
            yield number, fields

        number = reader.line_num + 1


def count(fields: list[str]) -> str:
    return "1 field" if len(fields) == 1 else f"{len(fields)} fields"


# Records with names


def json_rows(file: File, choose: Choose) -> Iterator[Row]:
    """The chosen columns of JSON objects, one per line; the first object names the columns."""
    columns: list[str] | None = None
    for number, line in read_lines(file):
        if not line or line.isspace():
            continue

        where = file.at(number)
        record = json_object(line, where)
        if columns is None:
            names = list(record)
            columns = columns_of(choose(names, where), names, where)

        values = [inside(record, column, where) for column in columns]
        if "\\u" in line:
            check_surrogates(values, where)

        yield number, values


def json_object(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: invalid JSON at column {error.colno} ({error.msg})") from None
    except RecursionError:
        raise ValueError(f"{where}: JSON nested too deeply") from None

    if not isinstance(record, dict):
        raise ValueError(f'{where}: expected an object such as {{"text": ...}}, not {kind(record)}')

    return record


def parquet_rows(file: File, choose: Choose) -> Iterator[Row]:
    """The chosen columns of a Parquet file, read page by page."""
    arrow = require("pyarrow", file.name)
    parquet = require("pyarrow.parquet", file.name)

    with file.decompressed() as path:
        if path.stat().st_size == 0:
            return

        try:
            # A row group may be as large as the file, so it is not buffered whole.
            with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as table:
                names = table.schema_arrow.names
                columns = columns_of(choose(names, file.name), names, file.name)
                outer = outer_columns(columns, names)
                batches = table.iter_batches(rows_per_batch(table.metadata), columns=outer)
                records = chain.from_iterable(batch.to_pylist() for batch in batches)
                for number, record in enumerate(records, 1):
                    yield number, [inside(record, column, file.at(number)) for column in columns]
        except (arrow.ArrowException, OSError) as error:
            raise OSError(
                f"{file.name}: not a Parquet file, or a damaged one ({first_line(error)})"
            ) from None


def rows_per_batch(metadata: Any) -> int:
    """The number of rows that take about four megabytes."""
    size = 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size

    return max(1, min(4096, (4 << 20) * metadata.num_rows // max(size, 1)))


# Columns and values


def columns_of(wanted: tuple[str, ...], names: list[str], where: str) -> list[str]:
    """The names of the wanted columns; raises if the table does not have them.

    A dot selects a field: translation.en is en in the column translation.
    """
    return [find_column(name, names, where) for name in wanted]


def find_column(name: str, names: list[str], where: str) -> str:
    """The column of a name or a number."""
    if name in names or ("." in name and name.partition(".")[0] in names):
        return name
    if name.isdigit() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]

    close = difflib.get_close_matches(name, names, n=1)
    hint = f"the columns are {', '.join(map(shortened, names))}"
    if close:
        hint = f"did you mean {close[0]}?"

    raise ValueError(f"{where}: no column {name!r}; {hint}")


def outer_columns(columns: list[str], names: list[str]) -> list[str]:
    """The columns of the file that hold the chosen columns and fields, sorted."""
    outer = set()
    for column in columns:
        outer.add(column if column in names else column.partition(".")[0])

    return sorted(outer)


def inside(record: dict[str, Any], column: str, where: str) -> Any:
    """The value of a column, or of a field inside one."""
    if column in record:
        return record[column]

    value: Any = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            available = ", ".join(map(shortened, record)) or "none"
            raise ValueError(f"{where}: no column {column!r}; it has {available}")

        value = value[name]

    return value


def as_string(value: Any, column: str, where: str) -> str:
    """The value if it is a string; raises otherwise."""
    if isinstance(value, str):
        return value

    raise ValueError(f"{where}: {column}: expected a string, not {kind(value)}")


def as_label(value: Any, where: str) -> str:
    """A label as a string; numbers are written as in JSON."""
    if isinstance(value, str):
        if label := value.strip():
            return label

        raise ValueError(f"{where}: the label is empty")

    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: the label: expected a number that is finite, not {value}")
    if isinstance(value, bool | int | float):
        return json.dumps(value)

    raise ValueError(f"{where}: the label: expected a string or a number, not {kind(value)}")


def check_surrogates(values: list[Any], where: str) -> None:
    """Raise if a string has half of a surrogate pair, which JSON allows and UTF-8 does not."""
    for value in values:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                half = value[error.start].encode("unicode-escape").decode()
                raise ValueError(f"{where}: {half} is only half of a character") from None


def kind(value: Any) -> str:
    """The JSON type of a value, for errors."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }

    if type(value) in names:
        return names[type(value)]
    if isinstance(value, int | float):
        return f"the number {value}"

    return type(value).__name__


def shortened(name: str) -> str:
    """A name of at most 40 characters, for errors."""
    if len(name) <= 40:
        return name

    return name[:39] + "…"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
