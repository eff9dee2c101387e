"""Atomic writes: files and folders are written completely or not at all. Does not import torch."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRITING = ".writing-"
REMOVING = ".removing-"
"""Prefixes of temporary names."""
CHUNK = 1 << 20
NO_FILES = "is a virtual file system, which holds no files; choose another folder"


class DiskFull(OSError):
    """The disk has no room for the new files; the old ones are intact."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC


def sha256(chunks: Iterable[Any]) -> str:
    """The checksum of bytes, or of objects with a buffer, one after the other."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)

    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return sha256(iter(lambda: file.read(CHUNK), b""))


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a socket, which may block its reader; a missing file passes."""
    with suppress(FileNotFoundError, NotADirectoryError):
        refuse_special(path, os.stat(path).st_mode)


def refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return

    kind = "a pipe, a device or a socket"
    if stat.S_ISDIR(mode):
        kind = "a folder"

    raise ValueError(f"{path}: expected a regular file, not {kind}")


def read_file(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; larger ones are not read."""
    check_regular(path)
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )

    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        refuse_special(path, status.st_mode)  # it may have been exchanged since the first check
        content = b""
        if status.st_size <= most:
            content = file.read(most + 1)

    if max(len(content), status.st_size) > most:
        raise ValueError(
            f"{path}: more than {most >> 20:,} MiB, too large for such a file; it is damaged or of "
            "another kind"
        )

    return content


def flush(path: Path) -> None:
    """Write a file's content, or a folder's entries, to the disk itself (fsync)."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder

    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)

    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def staging(parent: Path, needed: int, what: str, name: str | None = None) -> Iterator[Path]:
    """A temporary folder inside `parent`; what is not moved out of it is removed at the end.

    Args:
        parent: The folder of the results; it is created.
        needed: Bytes that will be written; DiskFull is raised at once if there is no room.
        what: What is written, for the error message.
        name: The end of the folder's name, for several processes that write into it (default:
            random).
    """
    parent.mkdir(parents=True, exist_ok=True)
    if needed > free(parent):
        raise DiskFull(no_room(parent, needed, what))

    staged = parent / f"{WRITING}{name or uuid.uuid4().hex[:12]}"

    try:
        staged.mkdir()
        yield staged
    except (OSError, SafetensorError) as error:
        shutil.rmtree(staged, ignore_errors=True)  # before the message measures the free space
        if errno_of(error) in FULL and not isinstance(error, DiskFull):
            raise DiskFull(f"{no_room(parent, needed, what)} ({error})") from error

        raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def replacing(path: Path, needed: int) -> Iterator[Path]:
    """The path of a temporary file, which at the end replaces `path`; `needed` is its size."""
    with staging(path.parent, needed, path.name) as folder:
        staged = folder / path.name
        yield staged
        flush(staged)
        move(staged, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, replacing an existing one."""
    content = text.encode()
    with replacing(path, len(content)) as staged:
        staged.write_bytes(content)


def free(folder: Path) -> int:
    """Free bytes on the disk of a folder.

    A file system that reports no size (/proc, some network mounts) counts as unlimited: writing
    then shows whether there is room.
    """
    usage = shutil.disk_usage(folder)
    if not usage.total:
        return sys.maxsize

    return usage.free


def no_room(folder: Path, needed: int, what: str) -> str:
    """The message of DiskFull."""
    return (
        f"{folder}: no room on the disk: {what} needs {needed:,} bytes, {free(folder):,} are free; "
        "what was saved before is intact. Make room and start again"
    )


def errno_of(error: Exception) -> int | None:
    """The errno of an error; safetensors has it only in its message."""
    if isinstance(error, OSError):
        return error.errno

    match = re.search(r"os error (\d+)", str(error))
    if match is None:
        return None

    return int(match[1])


def move(source: Path, target: Path) -> None:
    """Rename atomically, replacing an existing file, and flush the folder."""
    os.replace(source, target)
    flush(target.parent)


def remove(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that it is never seen with some of its files."""
    renamed = folder.with_name(f"{REMOVING}{uuid.uuid4().hex[:12]}")
    move(folder, renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what a killed process left; only the one process that writes here may call this."""
    for prefix in (WRITING, REMOVING):
        for path in parent.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


PROBLEMS = {
    errno.EROFS: "{path} is on a read-only file system; choose another folder",
    errno.EACCES: "{path}: permission denied; choose another folder, or change its permissions",
    errno.EPERM: "{path}: permission denied; choose another folder, or change its permissions",
    errno.ENOSPC: "{path}: no room on the disk; make room and start again",
    errno.EDQUOT: "{path}: your disk quota is used up; make room and start again",
    errno.EFBIG: "{path}: larger than the largest file that is allowed here (see ulimit -f)",
    errno.ENOENT: "{path}: no such file or folder",
    errno.ENOTDIR: "{path}: a part of this path is a file, not a folder",
    errno.EISDIR: "{path} is a folder; give the name of a file",
    errno.EEXIST: "{path} exists already; choose another name",
    errno.ENAMETOOLONG: "{path}: the name is too long",
    errno.EMFILE: "{path}: too many files are open in this process (see ulimit -n)",
    errno.EIO: "{path}: the disk reports an input/output error",
}


def sentence(error: OSError) -> str:
    """One sentence for a system error: the file, the problem, and what to do about it."""
    if error.errno is None or error.strerror is None:
        return str(error)  # it has a message of its own

    path = path_of(error)
    if path is None:
        problem = PROBLEMS.get(error.errno, error.strerror).removeprefix("{path}")
        return problem.lstrip(": ").removeprefix("is ")

    if error.errno == errno.ENOENT:
        virtual = virtual_folder(path)
        if virtual == path:
            return f"{path} {NO_FILES}"
        if virtual is not None:
            return f"{path} cannot be written: {virtual} {NO_FILES}"

    return PROBLEMS.get(error.errno, "{path}: " + error.strerror).replace("{path}", str(path))


def path_of(error: OSError) -> Path | None:
    """The path of a system error; for one inside a `staging` folder, the folder above it."""
    if not isinstance(error.filename, str | bytes):
        return None

    path = Path(os.fsdecode(error.filename))

    for part in (path, *path.parents):
        if part.name.startswith((WRITING, REMOVING)):
            return part.parent

    return path


def virtual_folder(path: Path) -> Path | None:
    """The closest existing folder, if its file system holds no files, as /proc; otherwise None."""
    path = path.absolute()
    for folder in (path, *path.parents):
        if folder.exists():
            virtual = shutil.disk_usage(folder).total == 0
            return folder if virtual else None

    return None


def read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted read-only."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def last_part(path: str) -> str:
    """The last part of a path, resolved if it exists: . is the folder's own name."""
    if Path(path).exists():
        return Path(path).resolve().name

    return Path(path).name
