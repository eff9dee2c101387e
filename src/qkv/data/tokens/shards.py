"""Sharded files of token ids: written once, then memory-mapped and read window by window."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Int, Integer

from qkv.data.tokens.token_arrays import Tokens
from qkv.storage import flush

SHARD = 1 << 26
"""Ids in a shard."""
MANIFEST = "manifest.json"


class DamagedShards(ValueError):
    """The files differ from those that were written."""


@dataclass(frozen=True)
class ShardedIds:
    """The manifest of a run of ids."""

    dtype: str
    tokens: int
    texts: int
    shards: dict[str, int]
    """The files of ids in order, with their sizes in bytes."""
    ends: dict[str, int]
    """The file of the ends of the texts, with its size."""


class ShardedIdsWriter:
    """Writes one run of ids; use it with `closing`, which always closes its files."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.folder = folder
        self.name = name
        self.dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
        self.tokens = 0
        self.texts = 0
        self.shards: list[str] = []
        self.ends = (folder / f"{name}-ends.bin").open("wb")
        self.shard: BinaryIO | None = None
        self.room = 0  # ids that still fit into the open shard

    def close(self) -> None:
        self.ends.close()
        if self.shard is not None:
            self.shard.close()

    def write(self, ids: Integer[np.ndarray, "N"], ends: Int[np.ndarray, "texts"]) -> None:
        """Append ids; `ends` are the positions just after each text, counted from these ids."""
        self.ends.write((ends + self.tokens).astype("<i8").tobytes())
        self.texts += len(ends)
        self.tokens += len(ids)
        ids = ids.astype(self.dtype, copy=False)

        while len(ids):
            if not self.room:
                self.next_shard()

            assert self.shard is not None
            part = ids[: self.room]
            self.shard.write(part.tobytes())
            self.room -= len(part)
            ids = ids[len(part) :]

    def next_shard(self) -> None:
        if self.shard is not None:
            self.shard.close()

        self.shards.append(f"{self.name}-{len(self.shards):05}.bin")
        self.shard = (self.folder / self.shards[-1]).open("wb")
        self.room = SHARD

    def finish(self) -> ShardedIds:
        """Close the files, flush them to disk, and return their manifest."""
        self.close()
        ends = f"{self.name}-ends.bin"
        sizes: dict[str, int] = {}

        for file in (*self.shards, ends):
            flush(self.folder / file)
            sizes[file] = (self.folder / file).stat().st_size

        return ShardedIds(
            self.dtype.str, self.tokens, self.texts, shards=sizes, ends={ends: sizes.pop(ends)}
        )


def write_manifest(
    folder: Path, key: str, about: dict[str, object], runs: dict[str, ShardedIds]
) -> None:
    """Write the manifest of a folder: its key, its source and its runs."""
    manifest = {"key": key, **about, "runs": {name: asdict(run) for name, run in runs.items()}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    flush(folder / MANIFEST)


def open_all_ids(folder: Path, key: str, names: Iterable[str]) -> list[Tokens]:
    """The runs of a folder, memory-mapped; raises if a file is missing or has the wrong size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["key"] != key:
            raise DamagedShards(f"{folder / MANIFEST}: it belongs to other data")

        return [open_ids(folder, ShardedIds(**manifest["runs"][name]), key) for name in names]
    except DamagedShards:
        raise
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:  # also JSON errors
        raise DamagedShards(f"{folder / MANIFEST}: it is damaged ({error!r})") from error


def open_ids(folder: Path, run: ShardedIds, key: str) -> Tokens:
    """One run of a folder, memory-mapped."""
    for name, size in {**run.shards, **run.ends}.items():
        file = folder / name
        if not file.is_file():
            raise DamagedShards(f"{file}: the file is missing")
        if file.stat().st_size != size:
            raise DamagedShards(
                f"{file}: it has {file.stat().st_size} bytes, but {size} were written"
            )

    shards = [np.memmap(folder / name, dtype=run.dtype, mode="r") for name in run.shards]
    (ends_name,) = run.ends
    ends = np.memmap(folder / ends_name, dtype="<i8", mode="r")

    return Tokens(shards, ends, key)
