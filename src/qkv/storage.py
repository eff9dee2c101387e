"""Files and folders that are there whole or not at all, and known by their checksum. No torch."""

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
WRITING, REMOVING = ".writing-", ".removing-"
CHUNK = 1 << 20


class DiskFull(OSError):
    """There was no room for what was to be written; what was there before is intact."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC


def sha256(chunks: Iterable[Any]) -> str:
    """Of bytes, or of whatever lends its bytes, one after the other."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)

    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return sha256(iter(lambda: file.read(CHUNK), b""))


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a socket, which may keep its reader waiting or never end. A
    missing file passes.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        refuse_special(path, os.stat(path).st_mode)


def refuse_special(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise ValueError(f"{path}: expected a regular file, not {kind}")


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file. One of more than `most` bytes is refused before it is read, and
    so is a pipe.
    """
    check_regular(path)
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))

    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        refuse_special(path, found.st_mode)  # it may have been exchanged since
        content = b"" if found.st_size > most else file.read(most + 1)

    if max(len(content), found.st_size) > most:
        raise ValueError(
            f"{path}: more than {most >> 20:,} MiB, too large for such a file; it is damaged or of another kind"
        )

    return content


def flush(path: Path) -> None:
    """A file's content, or a folder's list of names, onto the disk itself: it outlives a power cut."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder

    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)

    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def staging(parent: Path, needed: int, what: str) -> Iterator[Path]:
    """A new folder inside `parent` to write into. Move it, or its files, when all is flushed: the
    rest is removed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    if needed > free(parent):
        raise DiskFull(no_room(parent, needed, what))

    made = parent / f"{WRITING}{uuid.uuid4().hex[:12]}"

    try:
        made.mkdir()
        yield made
    except (OSError, SafetensorError) as error:
        shutil.rmtree(made, ignore_errors=True)  # before the free space is told
        if number_of(error) in FULL and not isinstance(error, DiskFull):
            raise DiskFull(f"{no_room(parent, needed, what)} ({error})") from error

        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """A file with this text, in place of one that was there."""
    content = text.encode()
    with staging(path.parent, len(content), path.name) as made:
        (made / path.name).write_bytes(content)
        flush(made / path.name)
        move(made / path.name, path)


def free(folder: Path) -> int:
    """Bytes that can still be written. A file system without a size of its own (/proc, some network
    mounts) has no number to compare with: writing is tried, and the system says whether it works.
    """
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else sys.maxsize


def no_room(folder: Path, needed: int, what: str) -> str:
    return (
        f"{folder}: no room on the disk: {what} needs {needed:,} bytes, {free(folder):,} are free; "
        "what was saved before is intact. Make room and start again"
    )


def number_of(error: Exception) -> int | None:
    """The system's number of an error; safetensors has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno

    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def move(source: Path, target: Path) -> None:
    """Under its new name at once, in place of a file that had it."""
    os.replace(source, target)
    flush(target.parent)


def remove(folder: Path) -> None:
    """A folder is never seen with a part of its files: it loses its name first."""
    gone = folder.with_name(f"{REMOVING}{uuid.uuid4().hex[:12]}")
    move(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(parent: Path) -> None:
    """What a killed process was writing or removing. Only the one process that writes here may call
    this.
    """
    for prefix in (WRITING, REMOVING):
        for path in parent.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


PROBLEMS = {
    errno.EROFS: "{path} is on a read-only file system; choose another folder",
    errno.EACCES: "{path}: permission denied; choose another place, or change its permissions",
    errno.EPERM: "{path}: permission denied; choose another place, or change its permissions",
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
    """What an error of the system means for its file, and what to do about it."""
    if error.errno is None or error.strerror is None:
        return str(error)  # one of our own, which says it already

    path = path_of(error)
    if path is None:
        return (
            PROBLEMS.get(error.errno, error.strerror)
            .removeprefix("{path}")
            .lstrip(": ")
            .removeprefix("is ")
        )

    if error.errno == errno.ENOENT and (virtual := without_size(path)):
        where = "" if virtual == path else f"{path} cannot be written: "
        return f"{where}{virtual} is a virtual file system, which holds no files; choose another folder"

    return PROBLEMS.get(error.errno, "{path}: " + error.strerror).replace("{path}", str(path))


def path_of(error: OSError) -> Path | None:
    """The file that could not be used; of one inside a folder of `staging`, the folder that is
    known to the user.
    """
    if not isinstance(error.filename, str | bytes):
        return None

    path = Path(os.fsdecode(error.filename))

    for each in (path, *path.parents):
        if each.name.startswith((WRITING, REMOVING)):
            return each.parent

    return path


def without_size(path: Path) -> Path | None:
    """The first folder that exists, if its file system holds no files of its own, as /proc does."""
    path = path.absolute()
    found = next((each for each in (path, *path.parents) if each.exists()), None)
    return found if found is not None and shutil.disk_usage(found).total == 0 else None


def read_only(folder: Path) -> bool:
    """Whether nothing can be written there, whoever tries."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
