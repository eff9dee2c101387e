"""Runs of ids in files of bounded size: written once, then mapped into memory and read piece by
piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from jaxtyping import Int, Integer

from qkv.data.tokens.token_arrays import Tokens
from qkv.storage import flush

SHARD = 1 << 26
"""Ids in a file."""
MANIFEST = "manifest.json"


class DamagedShards(ValueError):
    """The files are not those that were written."""


@dataclass(frozen=True)
class ShardedIds:
    """A run of ids, as the manifest has it."""

    dtype: str
    tokens: int
    texts: int
    shards: dict[str, int]
    """The files of ids in order, and their sizes in bytes."""
    ends: dict[str, int]
    """The file that says where each text ends, and its size."""


class ShardedIdsWriter:
    """Writes one run of ids; with `with`, its files are closed whatever happens."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.folder, self.name = folder, name
        self.dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
        self.tokens = self.texts = 0
        self.shards: list[str] = []
        self.ends = (folder / f"{name}-ends.bin").open("wb")
        self.open: BinaryIO | None = None
        self.room = 0  # ids that the open shard still takes

    def __enter__(self) -> ShardedIdsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.ends.close()
        if self.open is not None:
            self.open.close()

    def write(self, ids: Integer[np.ndarray, "N"], ends: Int[np.ndarray, "texts"]) -> None:
        """More ids; `ends` are just after each text's last, counted from the first of these."""
        self.ends.write((ends + self.tokens).astype("<i8").tobytes())
        self.texts += len(ends)
        self.tokens += len(ids)
        ids = ids.astype(self.dtype, copy=False)

        while len(ids):
            if not self.room:
                self.next_shard()

            assert self.open is not None
            self.open.write(ids[: self.room].tobytes())
            written = min(self.room, len(ids))
            ids, self.room = ids[written:], self.room - written

    def next_shard(self) -> None:
        if self.open is not None:
            self.open.close()

        self.shards.append(f"{self.name}-{len(self.shards):05}.bin")
        self.open, self.room = (self.folder / self.shards[-1]).open("wb"), SHARD

    def finish(self) -> ShardedIds:
        """Closes the files, onto the disk itself, and says what they hold."""
        self.__exit__(None, None, None)
        ends = f"{self.name}-ends.bin"

        for file in (*self.shards, ends):
            flush(self.folder / file)

        sizes = {file: (self.folder / file).stat().st_size for file in (*self.shards, ends)}

        return ShardedIds(
            self.dtype.str, self.tokens, self.texts, shards=sizes, ends={ends: sizes.pop(ends)}
        )


def write_manifest(
    folder: Path, key: str, about: dict[str, object], runs: dict[str, ShardedIds]
) -> None:
    manifest = {"key": key, **about, "runs": {name: asdict(run) for name, run in runs.items()}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    flush(folder / MANIFEST)


def open_all_ids(folder: Path, key: str, names: Iterable[str]) -> list[Tokens]:
    """The runs of a folder, mapped; refused where a file is missing or has not the size that was
    written.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["key"] != key:
            raise DamagedShards(f"{folder / MANIFEST}: it speaks of other data")

        return [open_ids(folder, ShardedIds(**manifest["runs"][name]), key) for name in names]
    except (
        FileNotFoundError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # JSON errors are ValueErrors
        if isinstance(error, DamagedShards):
            raise

        raise DamagedShards(f"{folder / MANIFEST}: it is damaged ({error!r})") from error


def open_ids(folder: Path, run: ShardedIds, key: str) -> Tokens:
    for name, size in {**run.shards, **run.ends}.items():
        file = folder / name
        if not file.is_file():
            raise DamagedShards(f"{file}: the file is missing")
        if file.stat().st_size != size:
            raise DamagedShards(
                f"{file}: it has {file.stat().st_size} bytes, and {size} were written"
            )

    shards = [np.memmap(folder / name, dtype=run.dtype, mode="r") for name in run.shards]
    ends = [np.memmap(folder / name, dtype="<i8", mode="r") for name in run.ends]
    return Tokens(shards, ends[0], key)
