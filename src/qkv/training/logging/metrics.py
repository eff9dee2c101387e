"""The metrics file of a run, metrics.jsonl: one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from qkv import storage
from qkv.training.logging.trackers import Sink, open_sinks

METRICS_FILE = "metrics.jsonl"
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
TEXT_FIELDS = ("event", "reason")
"""Fields whose strings are never numbers, even if they read "nan"."""


class Metrics:
    """The rows of one run. One process writes (the others are not `active`), any may read.

    A row has its `step`, and either numbers or an `event`. When a run goes back to a checkpoint,
    `rewind` removes what will be measured again.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        sinks: Sequence[Literal["tensorboard", "wandb"]] = (),
        config: Mapping[str, Any] | None = None,
        active: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self.active = active
        self.path = self.folder / METRICS_FILE
        self.file: FileIO | None = None
        self.sinks: list[Sink] = []
        if active:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.sinks = open_sinks(sinks, self.folder, to_plain_json(config or {}))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; when this returns, killing the process cannot lose it."""
        if not self.active:
            return

        if self.file is None:
            self.file = self.open()

        line = to_line(row).encode()
        try:
            remaining = memoryview(line)
            while remaining:  # a nearly full disk takes a part and refuses the rest
                remaining = remaining[self.file.write(remaining) :]
        except OSError as error:
            if error.errno in storage.FULL:
                raise storage.DiskFull(
                    storage.no_room(self.folder, len(line), f"a line of {METRICS_FILE}")
                ) from error

            raise

        for sink in self.sinks:
            sink.write(row)

    def rewind(self, step: int, *, keep_events: bool = False) -> None:
        """Remove the rows of steps after `step`, and the half line of a killed process.

        With `keep_events` the events of later steps stay: for a run that continues on other data,
        where they will not happen again. Once rows of that continuation follow them, they are part
        of the past, and no later rewind to one of those rows removes them.
        """
        if not self.active:
            return

        storage.sweep(self.folder)  # what a process killed in here left
        if self.path.exists():
            self.replace(self.rows_up_to(step, keep_events))

        for sink in self.sinks:
            sink.rewind(step)

    def rows_up_to(self, step: int, keep_events: bool) -> list[dict[str, Any]]:
        """The rows that stay in a rewind."""
        past: list[dict[str, Any]] = []
        later: list[dict[str, Any]] = []  # events after the last row that stays
        for row in self.intact_rows():
            if row["step"] <= step:
                past += [*later, row]
                later = []
            elif "event" in row:
                later.append(row)

        return past + later if keep_events else past

    def intact_rows(self) -> list[dict[str, Any]]:
        return [row for row in parse(self.path) if row is not None]

    def close(self) -> None:
        self.close_file()
        for sink in self.sinks:
            sink.close()

        self.sinks = []

    def close_file(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def open(self) -> FileIO:
        """The file, without a half line at its end, to append to without a buffer."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            self.replace(self.intact_rows())

        return FileIO(self.path, "a")

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the file anew, atomically."""
        self.close_file()
        storage.write_text(self.path, "".join(map(to_line, rows)))


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """All rows of a run's metrics, in the order they were written; also of a run in progress."""
    path = Path(folder) / METRICS_FILE
    rows = list(parse(path))
    if rows and rows[-1] is None:  # only the last line may be half written
        rows.pop()

    if None in rows:
        raise ValueError(
            f"{path}:{rows.index(None) + 1}: expected a JSON object with a step; "
            "the line is damaged: remove it and try again"
        )

    return rows


def parse(path: Path) -> Iterator[Any]:
    """The row of each line; None for a line that is not a row."""
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:  # not JSON, or not even UTF-8
                row = None

            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield {name: from_json(name, value) for name, value in row.items()}
            else:
                yield None


def to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(to_plain_json(row), allow_nan=False) + "\n"


def to_plain_json(value: Any) -> Any:
    """A value as standard JSON, which has no NaN and no infinity: they become strings."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(name): to_plain_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(to_plain_json, value))
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "item"):  # a number of NumPy or PyTorch
        return to_plain_json(value.item())

    return str(value)  # e.g. a path


def from_json(name: str, value: Any) -> Any:
    """A value of a row, with the strings for NaN and infinity turned back into numbers."""
    if isinstance(value, str) and name not in TEXT_FIELDS:
        return NOT_FINITE.get(value, value)

    return value
