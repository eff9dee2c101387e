"""Text from files, a pipe or the keyboard, and notes to the user on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import tyro

from qkv.text import Tokenizer
from qkv.text.printable import shortened

Texts = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")]
"""The texts of a command line, which have no flag."""
MOST_UNKNOWN = 5
"""Unknown words that a note lists."""
LONGEST = 1_000_000
"""The largest number of tokens that --length accepts."""


def note(text: str) -> None:
    """Print a line for the user on standard error, apart from the output."""
    print(f"qkv: {text}", file=sys.stderr, flush=True)


def note_unknown(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Print a note on the words that become the unknown token."""
    unknown: dict[str, None] = {}
    for text in texts:
        unknown |= dict.fromkeys(tokenizer.unknown_in(text))

    if not unknown:
        return

    listed = [repr(shortened(word, 40)) for word in list(unknown)[:MOST_UNKNOWN]]
    shown = ", ".join(listed)
    if len(unknown) > MOST_UNKNOWN:
        shown += f" and {len(unknown) - MOST_UNKNOWN} more"

    token = tokenizer.token(tokenizer.unknown or 0).strip()
    note(f"the model does not know {shown}; it reads {token} there")


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Turn errors of reading text into one sentence with the name of the file or pipe."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text ({error})") from error
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from error


def read_text(file: Path) -> str:
    """Return the content of a text file, which must be UTF-8."""
    with reading(file):
        return file.read_text(encoding="utf-8")


def read_standard_input() -> str:
    """Return all of standard input, which must be UTF-8."""
    with reading("standard input"):
        return sys.stdin.buffer.read().decode("utf-8")


def read_text_or_pipe(file: Path) -> str:
    """Return the content of a text file; `-` is standard input."""
    if str(file) == "-":
        return read_standard_input()

    return read_text(file)


def typed_lines() -> Iterator[str]:
    """Yield the lines of standard input that are not empty, with a prompt at a terminal."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing and history

    while True:
        try:
            with reading("standard input"):
                line = input("> ") if terminal else sys.stdin.readline()
        except EOFError:
            print()
            return

        if not line and not terminal:
            return

        if line.strip():
            yield line.strip()


@contextmanager
def errors_as_notes() -> Iterator[None]:
    """At a terminal, print a ValueError as a note, so that the user can type another line."""
    try:
        yield
    except ValueError as error:
        if not sys.stdin.isatty():
            raise

        note(str(error))


def check_length(length: int) -> None:
    if not 1 <= length <= LONGEST:
        raise ValueError(f"length: expected 1 to {LONGEST:,} tokens, not {length:,}")
