"""Files by name: a file, a folder, a glob, or - for standard input; .gz and .xz too."""

from __future__ import annotations

import difflib
import glob
import gzip
import hashlib
import io
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BLOCK = 1 << 20

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "conllu"]
FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conllu": "conllu",
}
COMPRESSIONS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
IN_FOLDERS = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""The files of a folder that are read. A file named by itself or by a glob is text unless its
ending is a known format.
"""
OF_A_RUN = ("model.safetensors", "metrics.jsonl")


@dataclass(frozen=True)
class File:
    """A file of data, possibly compressed."""

    path: Path
    name: str
    """The name as the user typed it."""
    format: Format
    from_pattern: bool = False
    """True for files of a folder or a glob, which may be empty."""
    temporary: Any = None
    """The temporary file that holds a copy of standard input; it is deleted with this object."""

    def at(self, number: int) -> str:
        """A line or row of the file, for errors."""
        if self.format == "parquet":
            return f"{self.name}, row {number}"

        return f"{self.name}:{number}"

    def blocks(self) -> Iterator[bytes]:
        """The content, decompressed, a megabyte at a time."""
        kind = compression(self.path.name)
        try:
            if self.path.stat().st_size == 0:
                return

            with self.open(kind) as stream:
                while block := stream.read(BLOCK):
                    yield block
        except EOFError:
            raise OSError(
                f"{self.name}: the compressed file ends too early; the copy is incomplete"
            ) from None
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise OSError(f"{self.name}: not a {kind} file, or a damaged one ({error})") from None
        except PermissionError:
            raise PermissionError(f"{self.name}: no permission to read it") from None

    def open(self, kind: str) -> io.BufferedIOBase | io.RawIOBase:
        """The file opened for reading, with the decompression of `kind`."""
        if kind:
            return COMPRESSIONS[kind](self.path, "rb")

        return self.path.open("rb", buffering=0)

    @contextmanager
    def decompressed(self) -> Iterator[Path]:
        """A path to the decompressed content, for libraries that need random access."""
        if not compression(self.path.name):
            yield self.path
            return

        with tempfile.NamedTemporaryFile(prefix="qkv-") as copy:
            for block in self.blocks():
                copy.write(block)

            copy.flush()
            yield Path(copy.name)

    def sha256(self) -> str:
        """The SHA-256 of the file as it is on the disk."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def find_files(name: str, piped: Format) -> list[File]:
    """The files of a name, in order.

    `piped` is the format of standard input; a name such as -.jsonl overrides it.
    """
    if name == "-" or (name.startswith("-.") and Path(name).suffix in FORMATS):
        if sys.stdin is None or sys.stdin.isatty():
            raise ValueError(
                f"{name}: nothing is piped in; write for example: cat my.txt | qkv ... --data -"
            )

        return [spooled(name, sys.stdin.buffer, FORMATS.get(Path(name).suffix, piped))]

    path = Path(name).expanduser()
    if path.is_dir():
        return folder_files(path, name)
    if path.is_file():
        return [File(path, name, format_of(path.name))]

    if path.exists():  # a named pipe, or <(...) of a shell
        with path.open("rb") as pipe:
            return [spooled(name, pipe, piped)]

    if glob.has_magic(name):
        return glob_files(name)

    raise FileNotFoundError(f"{name}: no such file or folder{suggestion(path)}")


def spooled(name: str, pipe: Any, format: Format) -> File:
    """A temporary copy of a pipe, so that it can be read more than once."""
    copy = tempfile.NamedTemporaryFile(prefix="qkv-")  # noqa: SIM115 - the File holds it
    shutil.copyfileobj(pipe, copy)
    copy.flush()

    return File(Path(copy.name), name, format, temporary=copy)


def folder_files(folder: Path, name: str) -> list[File]:
    """The readable files of a folder and its subfolders."""
    if is_run(folder):
        raise ValueError(f"{name}: this is the output folder of a training, not data")

    files = list(map(pattern_file, walk(folder)))
    if not files:
        raise FileNotFoundError(
            f"{name}: the folder holds no text ({', '.join(IN_FOLDERS)}, also with .gz or .xz); "
            f"name other files by a glob, such as '{os.path.join(name, '**', '*.log')}'"
        )

    return files


def walk(folder: Path) -> Iterator[Path]:
    """The readable files of a folder and its subfolders, sorted.

    Hidden files and the output folders of training are left out.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue

        if path.is_dir():
            if not is_run(path) and not path.is_symlink():
                yield from walk(path)
        elif path.is_file() and without_compression(path.name).lower().endswith(IN_FOLDERS):
            yield path


def glob_files(pattern: str) -> list[File]:
    """The files that match a glob, and those of matching folders, each once."""
    files: dict[Path, File] = {}
    for match in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
        path = Path(match)
        if path.is_file():
            files[path] = pattern_file(path)
        elif not is_run(path):
            for inner in walk(path):
                files[inner] = pattern_file(inner)

    if not files:
        raise FileNotFoundError(f"{pattern}: no file matches")

    return list(files.values())


def pattern_file(path: Path) -> File:
    """A file of a folder or a glob."""
    return File(path, str(path), format_of(path.name), from_pattern=True)


def is_run(folder: Path) -> bool:
    """True for the output folder of training."""
    return any((folder / name).exists() for name in OF_A_RUN)


def format_of(name: str) -> Format:
    return FORMATS.get(Path(without_compression(name)).suffix.lower(), "text")


def compression(name: str) -> str:
    """The ending of a compressed file's name, or an empty string."""
    for ending in COMPRESSIONS:
        if name.lower().endswith(ending):
            return ending

    return ""


def without_compression(name: str) -> str:
    return name[: len(name) - len(compression(name))]


def suggestion(path: Path) -> str:
    """A hint with a similar name in the same folder, or an empty string."""
    while not path.parent.is_dir():
        path = path.parent

    try:
        names = [name for name in os.listdir(path.parent) if not name.startswith(".")]
    except OSError:
        return ""

    if path.parent == Path():
        names += ["python", "turkish"]

    close = difflib.get_close_matches(path.name, names, n=1)
    if not close:
        return ""

    return f"; did you mean {path.parent / close[0]}?"
