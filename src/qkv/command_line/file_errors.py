"""Errors of files, with the flag that named the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv import storage


def os_error_sentence(error: OSError, arguments: Sequence[str]) -> str:
    """The error in one sentence: `out: /x is on a read-only file system; choose another folder`"""
    sentence = storage.sentence(error)
    path = storage.path_of(error)
    if path is None:
        return sentence

    path = path.absolute()
    typed = [(flag, Path(value).absolute()) for flag, value in flags_with_values(arguments)]

    for flag, value in typed:
        if value == path or value in path.parents:
            return f"{flag}: {sentence}"

    # A folder above: only `out` names a path that does not exist yet. `--steps 100` is not a path.
    if path.name:
        for flag, value in typed:
            if flag == "out" and path in value.parents:
                return f"out: {sentence}"

    return sentence


def flags_with_values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each value of the command line with the flag before it."""
    flag = None
    for argument in arguments:
        value = argument
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            flag = name[2:].replace("-", "_")

        if flag is not None and value:
            yield flag, value
