"""Texts or pairs, and a tokenizer, into ids on disk: once, in parallel, within bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from qkv.data.sources.source import PairSource, TextSource
from qkv.data.tokens.encode import (
    CHUNK,
    Chunk,
    batches,
    chunks,
    encoder,
    in_order,
    pair_encoder,
    separable,
)
from qkv.data.tokens.shards import DamagedShards, ShardedIdsWriter, open_all_ids, write_manifest
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.storage import DiskFull, move, remove, staging, sweep
from qkv.text.tokenizer import Tokenizer

FORMAT = 1
"""Changes when the same source and tokenizer would give other files."""


def prepare_texts(
    source: TextSource, tokenizer: Tokenizer, *, cache: Path | None = None, progress: bool = True
) -> Tokens:
    """The ids of all texts, each followed by the end token if the tokenizer has one."""

    def write(folder: Path, key: str, advance: Callable[[int, int], None]) -> None:
        cut = CHUNK if separable(tokenizer) else None
        with ShardedIdsWriter(folder, "texts", tokenizer.vocabulary) as writer:
            for characters, (ids, ends) in in_order(
                encoder(tokenizer), batches(chunks(source, cut), Chunk.size)
            ):
                writer.write(ids, ends)
                advance(characters, writer.tokens)

            if not writer.tokens:
                raise ValueError(
                    f"{source.name}: there is no text in it; give a file that has some"
                )

            write_manifest(folder, key, {"source": source.name}, {"texts": writer.finish()})

    return prepared(source, tokenizer, "texts", ["texts"], cache, progress, write)[0]


def prepare_pairs(
    source: PairSource, tokenizer: Tokenizer, *, cache: Path | None = None, progress: bool = True
) -> Pairs:
    """The ids of all sources and of their targets, without start or end tokens."""

    def write(folder: Path, key: str, advance: Callable[[int, int], None]) -> None:
        names = ("source", "target")
        with (
            ShardedIdsWriter(folder, names[0], tokenizer.vocabulary) as sources,
            ShardedIdsWriter(folder, names[1], tokenizer.vocabulary) as targets,
        ):
            encode = pair_encoder(tokenizer)
            for characters, sides in in_order(
                encode, batches(source, lambda pair: len(pair[0]) + len(pair[1]))
            ):
                for name, writer, (ids, ends) in zip(names, (sources, targets), sides, strict=True):
                    empty = np.flatnonzero(np.diff(ends, prepend=0) == 0)
                    if len(empty):
                        number = writer.texts + int(empty[0]) + 1
                        raise ValueError(
                            f"{source.name}: the {name} of pair {number} has no words; leave the pair out"
                        )

                    writer.write(ids, ends)

                advance(characters, sources.tokens + targets.tokens)

            if not sources.texts:
                raise ValueError(
                    f"{source.name}: there are no pairs in it; give a file that has some"
                )

            runs = {"source": sources.finish(), "target": targets.finish()}
            write_manifest(folder, key, {"source": source.name}, runs)

    sources, targets = prepared(
        source, tokenizer, "pairs", ["source", "target"], cache, progress, write
    )
    return Pairs(sources, targets)


def prepared(
    source: TextSource | PairSource,
    tokenizer: Tokenizer,
    kind: str,
    runs: list[str],
    cache: Path | None,
    progress: bool,
    write: Callable[[Path, str, Callable[[int, int], None]], None],
) -> list[Tokens]:
    """The runs as they lie in the cache, written before where they were not there.

    The folder gets its name when it is complete, so one half-written is never read, and of two
    processes that write the same the second one's is dropped. They only wait for each other to save
    the work.
    """
    # The order of the files counts, as it is the order of the texts; their names do not, as one has
    # several.
    facts = [FORMAT, kind, tokenizer.fingerprint, list(source.fingerprint().values())]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    parent = (cache_folder() if cache is None else Path(cache)) / key[:32]
    folder = parent / "prepared"
    if folder.is_dir():
        try:
            return open_all_ids(folder, key, runs)
        except DamagedShards as damage:
            print(f"{damage}: preparing it again", file=sys.stderr)

    try:
        parent.mkdir(parents=True, exist_ok=True)
        with only_one(parent / "lock") as alone:
            if alone:
                sweep(parent)

            if not intact(folder, key, runs):
                with (
                    staging(parent, 0, f"preparing {source.name}") as made,
                    shown(source.name, progress) as advance,
                ):
                    write(made, key, advance)
                    put(made, folder, key, runs)
    except DiskFull as error:
        raise DiskFull(
            f"{parent}: no room on the disk to prepare {source.name}; make room, or set QKV_CACHE to a folder elsewhere"
        ) from error
    except PermissionError as error:
        raise PermissionError(
            f"{parent}: cannot write there ({error}); set QKV_CACHE to a folder of yours"
        ) from error

    return open_all_ids(folder, key, runs)


def cache_folder() -> Path:
    """$QKV_CACHE, or else the user's folder for caches."""
    if given := os.environ.get("QKV_CACHE"):
        return Path(given).expanduser()

    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "qkv"


def intact(folder: Path, key: str, runs: list[str]) -> bool:
    try:
        return folder.is_dir() and bool(open_all_ids(folder, key, runs))
    except DamagedShards:
        return False


def put(made: Path, folder: Path, key: str, runs: list[str]) -> None:
    if folder.is_dir() and not intact(folder, key, runs):
        remove(folder)

    try:
        move(made, folder)
    except OSError:
        if not intact(folder, key, runs):  # or else another process was first
            raise


@contextmanager
def only_one(lock: Path) -> Iterator[bool]:
    """Waits until no other process is inside; False where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        yield False
        return

    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:  # some network disks
            alone = False

        yield alone


@contextmanager
def shown(name: str, progress: bool) -> Iterator[Callable[[int, int], None]]:
    """A line that tells how far it is, on a terminal only."""
    columns = (
        SpinnerColumn(),
        TextColumn("preparing {task.description}"),
        TextColumn("{task.fields[said]}"),
    )
    quiet = not (progress and sys.stderr.isatty())

    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, disable=quiet
    ) as bar:
        task = bar.add_task(name, total=None, said="")
        read = 0

        def advance(characters: int, tokens: int) -> None:
            nonlocal read
            read += characters
            bar.update(
                task,
                said=f"{read / 1e6:,.1f} million characters, {tokens / 1e6:,.1f} million tokens",
            )

        yield advance
