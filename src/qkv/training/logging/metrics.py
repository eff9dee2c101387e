"""What a run measured: one JSON object a line in RUN/metrics.jsonl, whatever else listens."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from qkv import storage
from qkv.training.logging.trackers import Sink, open_sinks

NAME = "metrics.jsonl"
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
WORDS = ("event", "reason")  # fields of words: a reason that reads "nan" stays a word


class Metrics:
    """The rows of one run. One process writes (the others are not `active`), any may read.

    A row has its `step`, and either numbers or an `event`. When a run goes back to a checkpoint,
    `rewind` forgets what will be measured again.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        sinks: Sequence[Literal["tensorboard", "wandb"]] = (),
        config: Mapping[str, Any] | None = None,
        active: bool = True,
    ) -> None:
        self.folder, self.active = Path(folder), active
        self.path = self.folder / NAME
        self.file: FileIO | None = None
        self.sinks: list[Sink] = []
        if active:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.sinks = open_sinks(sinks, self.folder, plain(config or {}))

    def write(self, row: Mapping[str, Any]) -> None:
        """Out of this process when it returns: a kill cannot take it back."""
        if not self.active:
            return

        if self.file is None:
            self.file = self.open()

        try:
            left = memoryview(line(row))
            while left:  # a disk with little room takes a part, and refuses the rest
                left = left[self.file.write(left) :]
        except OSError as error:
            if error.errno in storage.FULL:
                raise storage.DiskFull(
                    storage.no_room(self.folder, len(line(row)), f"a line of {NAME}")
                ) from error

            raise

        for sink in self.sinks:
            sink.write(row)

    def rewind(self, step: int, *, keep_events: bool = False) -> None:
        """The run is again where it was after `step`: rows of later steps go, and the half line of
        a killed process.

        With `keep_events` the events of later steps stay: for a run that takes another way from
        there, on which they will not happen again. Once rows of that way follow them, they belong
        to the past, and no later rewind to one of those rows takes them.
        """
        if not self.active:
            return

        storage.sweep(self.folder)  # a process killed in here left its half
        if self.path.exists():
            rows = [row for _, row in parse(self.path) if row is not None]
            last = max((place for place, row in enumerate(rows) if row["step"] <= step), default=-1)
            kept = [
                row
                for place, row in enumerate(rows)
                if row["step"] <= step or ("event" in row and (keep_events or place < last))
            ]
            self.replace(kept)

        for sink in self.sinks:
            sink.rewind(step)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

        for sink in self.sinks:
            sink.close()

        self.sinks = []

    def open(self) -> FileIO:
        if self.path.exists() and not ends_in_newline(self.path):
            self.replace([row for _, row in parse(self.path) if row is not None])

        return FileIO(self.path, "a")  # no buffer: nothing waits in this process

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

        with storage.staging(self.folder, self.path.stat().st_size, f"a new {NAME}") as made:
            new = made / NAME
            with new.open("wb") as file:
                file.writelines(line(row) for row in rows)

            storage.flush(new)
            storage.move(new, self.path)


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """All rows in the order they were written; of a run in progress, those that are there so far."""
    path = Path(folder) / NAME
    rows, broken = [], None

    for number, row in parse(path):
        if broken is not None:  # only the last line may be half written
            raise ValueError(
                f"{path}:{broken}: expected a JSON object with a step; the line is damaged: remove it and try again"
            )

        if row is None:
            broken = number
        else:
            rows.append(row)

    return rows


def parse(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Line numbers and rows; None where a line is not a row."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except ValueError:  # not JSON, or not even UTF-8
                row = None

            whole = isinstance(row, dict) and isinstance(row.get("step"), int)
            yield (
                number,
                {name: restored(name, value) for name, value in row.items()} if whole else None,
            )


def line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(row), allow_nan=False) + "\n").encode()


def plain(value: Any) -> Any:
    """As JSON has it, which knows no NaN and no infinity: they become words that every reader
    accepts.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value

    return (
        plain(value.item()) if hasattr(value, "item") else str(value)
    )  # numbers of numpy and torch; paths


def restored(name: str, value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) and name not in WORDS else value


def ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True

        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
