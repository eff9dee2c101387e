"""Errors of files, with the flag that named the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv import storage


def os_error_sentence(error: OSError, arguments: Sequence[str]) -> str:
    """`out: /x is on a read-only file system; choose another folder`"""
    told = storage.sentence(error)
    path = storage.path_of(error)
    if path is None:
        return told

    path = path.absolute()
    named = [(flag, Path(value).absolute()) for flag, value in flags_with_values(arguments)]

    for flag, given in named:
        if given == path or given in path.parents:
            return f"{flag}: {told}"

    # A folder above: only `out` names something that is yet to be made in it. `--steps 100` is no
    # path below here.
    if path.name and any(flag == "out" and path in given.parents for flag, given in named):
        return f"out: {told}"

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
