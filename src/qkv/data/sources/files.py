"""From a name that a person types to files: a file, a folder, a glob, or - for standard input."""

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
COMPRESSIONS = (".gz", ".xz")
IN_FOLDERS = (
    ".txt",
    ".text",
    ".md",
    ".rst",
    *(ending for ending in FORMATS if ending != ".conllu"),
)
"""What is read of a folder. A file named by itself or by a glob is text if its ending says nothing
else.
"""
OF_A_RUN = ("model.safetensors", "metrics.jsonl")


@dataclass(frozen=True)
class File:
    path: Path
    name: str
    """As the person knows it."""
    format: Format
    found: bool = False
    """In a folder or by a glob, where an empty file is no mistake."""
    kept: Any = None
    """The temporary file of standard input, which is deleted when nobody holds it any more."""

    def at(self, number: int) -> str:
        return f"{self.name}, row {number}" if self.format == "parquet" else f"{self.name}:{number}"

    def blocks(self) -> Iterator[bytes]:
        """Its content, decompressed, a megabyte at a time."""
        kind = compression(self.path.name)
        try:
            if self.path.stat().st_size == 0:
                return

            with self.open(kind) as stream:
                while block := stream.read(BLOCK):
                    yield block
        except EOFError:
            raise OSError(
                f"{self.name}: the compressed file ends too early; it was cut off when it was copied"
            ) from None
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise OSError(f"{self.name}: not a {kind} file, or a damaged one ({error})") from None
        except PermissionError:
            raise PermissionError(f"{self.name}: no permission to read it") from None

    def open(self, kind: str) -> io.BufferedIOBase | io.RawIOBase:
        if kind == ".gz":
            return gzip.open(self.path, "rb")
        if kind == ".xz":
            return lzma.open(self.path, "rb")

        return self.path.open("rb", buffering=0)

    @contextmanager
    def decompressed(self) -> Iterator[Path]:
        """For libraries that jump about in a file."""
        if not compression(self.path.name):
            yield self.path
            return

        with tempfile.NamedTemporaryFile(prefix="qkv-") as copy:
            for block in self.blocks():
                copy.write(block)

            copy.flush()
            yield Path(copy.name)

    def sha256(self) -> str:
        """Of the file as it lies on the disk."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def find_files(name: str, piped: Format) -> list[File]:
    """The files that a name means, in order.

    `piped` is the format of what comes through a pipe; the name -.jsonl says another.
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
    """What can be read only once, copied, so that it can be read again."""
    copy = tempfile.NamedTemporaryFile(prefix="qkv-")  # noqa: SIM115 - the File holds it
    shutil.copyfileobj(pipe, copy)
    copy.flush()

    return File(Path(copy.name), name, format, kept=copy)


def folder_files(folder: Path, name: str) -> list[File]:
    if is_run(folder):
        raise ValueError(f"{name}: this is the output folder of a training, not data")

    files = [File(path, str(path), format_of(path.name), found=True) for path in walk(folder)]
    if not files:
        raise FileNotFoundError(
            f"{name}: the folder holds no text ({', '.join(IN_FOLDERS)}, or these with .gz or .xz); "
            f"name other files by a glob, such as '{os.path.join(name, '**', '*.log')}'"
        )

    return files


def walk(folder: Path) -> Iterator[Path]:
    """The readable files in a folder and the folders in it, by name; hidden ones and outputs of
    trainings left out.
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
    files = []
    for match in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
        path = Path(match)
        paths = [path] if path.is_file() else [] if is_run(path) else list(walk(path))
        files += [File(each, str(each), format_of(each.name), found=True) for each in paths]

    if not files:
        raise FileNotFoundError(f"{pattern}: no file matches")

    return list({file.path: file for file in files}.values())  # ** finds a folder and what is in it


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in OF_A_RUN)


def format_of(name: str) -> Format:
    return FORMATS.get(Path(without_compression(name)).suffix.lower(), "text")


def compression(name: str) -> str:
    return next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")


def without_compression(name: str) -> str:
    return name[: len(name) - len(compression(name))]


def suggestion(path: Path) -> str:
    """What stands in the same folder under a name like this one."""
    while not path.parent.is_dir():
        path = path.parent

    try:
        names = [each for each in os.listdir(path.parent) if not each.startswith(".")]
    except OSError:
        return ""

    if path.parent == Path():
        names += ["python", "turkish"]

    close = difflib.get_close_matches(path.name, names, n=1)

    return f"; did you mean {path.parent / close[0]}?" if close else ""
