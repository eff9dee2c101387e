"""Errors of files, with the flag that named the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv import disk


def os_error_sentence(error: OSError, arguments: Sequence[str]) -> str:
    """`out: /x is on a read-only file system; choose another folder`"""
    told = disk.sentence(error)
    path = disk.path_of(error)
    if path is None:
        return told
    path = path.absolute()
    for flag, value in flags_with_values(arguments):
        given = Path(value).absolute()
        if given == path or given in path.parents or (path in given.parents and path.name):
            return f"{flag}: {told}"
    return told


def flags_with_values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    flag = None
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flag = name[2:].replace("-", "_")
            argument = value if equals else ""
        if flag is not None and argument:
            yield flag, argument
