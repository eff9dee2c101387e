"""Preparing data: tokenise texts or pairs once, in parallel, and cache the ids on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from qkv.data.sources.named import Content
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
from qkv.data.tokens.shards import (
    DamagedShards,
    ShardedIds,
    ShardedIdsWriter,
    open_all_ids,
    write_manifest,
)
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.storage import DiskFull, move, remove, staging, sweep
from qkv.text.tokenizer import Tokenizer

FORMAT = 1
"""Version of the cached files; it changes when the same input would give other files."""

Advance = Callable[[int, int], None]
"""Called with the number of new characters and the total number of tokens."""
Write = Callable[[Path, str, Advance], None]
"""Writes the ids and their manifest into a folder, under a key."""
RUNS = {"texts": ["texts"], "pairs": ["source", "target"]}
Encodings = Iterator[tuple[int, tuple[Encoded, ...]]]
"""Batches: their number of characters, and the ids of each run."""


def prepare_texts(
    source: TextSource, tokenizer: Tokenizer, *, cache: Path | None = None, progress: bool = True
) -> Tokens:
    """The ids of all texts, each followed by the end token if the tokenizer has one."""

    def encoded() -> Encodings:
        size = CHUNK if separable(tokenizer) else None
        batches = batch_by_characters(split_chunks(source, size), Chunk.size)
        for characters, texts in in_order(encoder(tokenizer), batches):
            yield characters, (texts,)

    (texts,) = prepared(source, tokenizer, "texts", cache, progress, encoded)
    return texts


def prepare_pairs(
    source: PairSource, tokenizer: Tokenizer, *, cache: Path | None = None, progress: bool = True
) -> Pairs:
    """The ids of all sources and of their targets, without start or end tokens."""

    def encoded() -> Encodings:
        batches = batch_by_characters(source, lambda pair: len(pair[0]) + len(pair[1]))
        return in_order(pair_encoder(tokenizer), batches)

    sources, targets = prepared(source, tokenizer, "pairs", cache, progress, encoded)
    return Pairs(sources, targets)


def write_runs(
    folder: Path,
    name: str,
    vocabulary: int,
    runs: list[str],
    encodings: Encodings,
    advance: Advance,
) -> dict[str, ShardedIds]:
    """Write the ids of each run; the texts of a pair must have tokens."""
    with ExitStack() as stack:
        writers = []
        for run in runs:
            writer = ShardedIdsWriter(folder, run, vocabulary)
            writers.append(stack.enter_context(closing(writer)))

        for characters, parts in encodings:
            for writer, (ids, ends) in zip(writers, parts, strict=True):
                if len(runs) > 1:
                    check_not_empty(writer, ends, name)

                writer.write(ids, ends)

            advance(characters, sum(writer.tokens for writer in writers))

        if not writers[0].tokens:
            what = "is no text" if len(runs) == 1 else "are no pairs"
            raise ValueError(f"{name}: there {what} in it; give a file that has some")

        return {writer.name: writer.finish() for writer in writers}


def check_not_empty(writer: ShardedIdsWriter, ends: np.ndarray, name: str) -> None:
    """Raise if one side of a pair has no tokens."""
    empty = np.flatnonzero(np.diff(ends, prepend=0) == 0)
    if len(empty):
        number = writer.texts + int(empty[0]) + 1
        raise ValueError(
            f"{name}: the {writer.name} of pair {number} has no tokens; leave the pair out"
        )


def prepared(
    source: TextSource | PairSource,
    tokenizer: Tokenizer,
    kind: Content,
    cache: Path | None,
    progress: bool,
    encoded: Callable[[], Encodings],
) -> list[Tokens]:
    """The runs of ids from the cache, written first if they are not there.

    The folder gets its final name when it is complete, so a partial one is never read. Of two
    processes that write the same data the second result is dropped; they wait for each other only
    to save work.
    """
    runs = RUNS[kind]

    def write(folder: Path, key: str, advance: Advance) -> None:
        written = write_runs(folder, source.name, tokenizer.vocabulary, runs, encoded(), advance)
        write_manifest(folder, key, {"source": source.name}, written)

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
