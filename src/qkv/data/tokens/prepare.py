"""Preparing data: tokenise texts or pairs once, in parallel, and cache the ids on disk."""

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
    Encoded,
    batch_by_characters,
    encoder,
    in_order,
    pair_encoder,
    separable,
    split_chunks,
)
from qkv.data.tokens.shards import DamagedShards, ShardedIdsWriter, open_all_ids, write_manifest
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.storage import DiskFull, move, remove, staging, sweep
from qkv.text.tokenizer import Tokenizer

FORMAT = 1
"""Version of the cached files; it changes when the same input would give other files."""

Advance = Callable[[int, int], None]
"""Called with the number of new characters and the total number of tokens."""
Write = Callable[[Path, str, Advance], None]
"""Writes the ids and their manifest into a folder, under a key."""


def prepare_texts(
    source: TextSource, tokenizer: Tokenizer, *, cache: Path | None = None, progress: bool = True
) -> Tokens:
    """The ids of all texts, each followed by the end token if the tokenizer has one."""

    def write(folder: Path, key: str, advance: Advance) -> None:
        size = CHUNK if separable(tokenizer) else None
        encoded = in_order(
            encoder(tokenizer), batch_by_characters(split_chunks(source, size), Chunk.size)
        )

        with ShardedIdsWriter(folder, "texts", tokenizer.vocabulary) as writer:
            for characters, (ids, ends) in encoded:
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

    def write(folder: Path, key: str, advance: Advance) -> None:
        encoded = in_order(pair_encoder(tokenizer), batch_by_characters(source, pair_size))
        with (
            ShardedIdsWriter(folder, "source", tokenizer.vocabulary) as sources,
            ShardedIdsWriter(folder, "target", tokenizer.vocabulary) as targets,
        ):
            for characters, (source_ids, target_ids) in encoded:
                write_side(sources, source_ids, source.name)
                write_side(targets, target_ids, source.name)
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


def pair_size(pair: tuple[str, str]) -> int:
    return len(pair[0]) + len(pair[1])


def write_side(writer: ShardedIdsWriter, encoded: Encoded, name: str) -> None:
    """Write one side of pairs; raises if a text has no tokens."""
    ids, ends = encoded
    empty = np.flatnonzero(np.diff(ends, prepend=0) == 0)
    if len(empty):
        number = writer.texts + int(empty[0]) + 1
        raise ValueError(
            f"{name}: the {writer.name} of pair {number} has no tokens; leave the pair out"
        )

    writer.write(ids, ends)


def prepared(
    source: TextSource | PairSource,
    tokenizer: Tokenizer,
    kind: str,
    runs: list[str],
    cache: Path | None,
    progress: bool,
    write: Write,
) -> list[Tokens]:
    """The runs of ids from the cache, written first if they are not there.

    The folder gets its final name when it is complete, so a partial one is never read. Of two
    processes that write the same data the second result is dropped; they wait for each other only
    to save work.
    """
    # The key depends on the order of the files, but not on their names: a file can have several.
    facts = [FORMAT, kind, tokenizer.fingerprint, list(source.fingerprint().values())]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    if cache is None:
        cache = cache_folder()

    parent = Path(cache) / key[:32]
    folder = parent / "prepared"
    if folder.is_dir():
        try:
            return open_all_ids(folder, key, runs)
        except DamagedShards as damage:
            print(f"{damage}: preparing it again", file=sys.stderr)

    try:
        write_cache(folder, key, runs, source.name, progress, write)
    except DiskFull as error:
        raise DiskFull(
            f"{parent}: no room on the disk to prepare {source.name}; "
            "make room, or set QKV_CACHE to a folder elsewhere"
        ) from error
    except PermissionError as error:
        raise PermissionError(
            f"{parent}: cannot write there ({error}); set QKV_CACHE to a folder of yours"
        ) from error

    return open_all_ids(folder, key, runs)


def write_cache(
    folder: Path, key: str, runs: list[str], name: str, progress: bool, write: Write
) -> None:
    """Write the runs into a staging folder and move it to its place, unless another process did."""
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    with file_lock(parent / "lock") as locked:
        if locked:
            sweep(parent)

        if intact(folder, key, runs):
            return

        with (
            staging(parent, 0, f"preparing {name}") as staged,
            progress_line(name, progress) as advance,
        ):
            write(staged, key, advance)
            install(staged, folder, key, runs)


def cache_folder() -> Path:
    """$QKV_CACHE, or else the user's folder for caches."""
    folder = os.environ.get("QKV_CACHE")
    if folder:
        return Path(folder).expanduser()

    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "qkv"


def intact(folder: Path, key: str, runs: list[str]) -> bool:
    """True if a folder has complete runs of this key."""
    try:
        return folder.is_dir() and bool(open_all_ids(folder, key, runs))
    except DamagedShards:
        return False


def install(staged: Path, folder: Path, key: str, runs: list[str]) -> None:
    """Move a complete folder to its place, replacing a damaged one."""
    if folder.is_dir() and not intact(folder, key, runs):
        remove(folder)

    try:
        move(staged, folder)
    except OSError:
        if not intact(folder, key, runs):  # otherwise another process was first
            raise


@contextmanager
def file_lock(lock: Path) -> Iterator[bool]:
    """Hold an exclusive file lock; False on systems without such locks."""
    try:
        import fcntl
    except ImportError:
        yield False
        return

    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            locked = True
        except OSError:  # some network disks
            locked = False

        yield locked


@contextmanager
def progress_line(name: str, progress: bool) -> Iterator[Advance]:
    """A progress line with the counts so far, on a terminal only."""
    columns = (
        SpinnerColumn(),
        TextColumn("preparing {task.description}"),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    quiet = not (progress and sys.stderr.isatty())

    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=None, counts="")
        read = 0

        def advance(characters: int, tokens: int) -> None:
            nonlocal read
            read += characters
            counts = f"{read / 1e6:,.1f} million characters, {tokens / 1e6:,.1f} million tokens"
            bar.update(task, counts=counts)

        yield advance
