"""From the command line to a command: every command is parsed here, by tyro, and speaks with one
voice.

Wrong usage becomes a UsageError with one sentence (exit status 2); help is printed in the
terminal's width. What tyro calls its types (`{None}|FLOAT`) is never shown.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, TypeVar

import tyro

from qkv.command_line.flag_types import flag_types
from qkv.command_line.flags import flags_of
from qkv.command_line.listing import listed
from qkv.command_line.usage_errors import UsageError, not_among, usage_sentence

Value = TypeVar("Value")


def run_command(command: Callable[..., Value], arguments: Sequence[str], prog: str) -> Value:
    """Call a function with the flags of the command line as its arguments."""
    call = parse(deferred(command), arguments, prog)
    with naming_flags(command):
        return call()


def run_one_of(commands: dict[str, Callable[..., Any]], arguments: Sequence[str], prog: str) -> Any:
    """Call the function that the first argument names; without one, list them."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: {prog} {{{','.join(commands)}}} ...\n")
        for each, command in commands.items():
            print(listed(each, inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]))

        print(f"\n{prog} NAME --help explains each.")
        return None

    return run_command(commands[chosen(name, commands, prog)], rest, f"{prog} {name}")


def chosen(name: str, names: Sequence[str] | dict[str, Any], prog: str) -> str:
    if name not in names:
        raise UsageError(f"{prog.removeprefix('qkv ')}: {not_among(name, list(names))}")

    return name


def parse(
    target: Callable[..., Value],
    arguments: Sequence[str],
    prog: str,
    *,
    default: Value | None = None,
    description: str | None = None,
) -> Value:
    """What a dataclass, or a function, makes of the command line. The flags of nested dataclasses
    have no prefix.
    """
    options: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,), "registry": flag_types()}
    if default is not None:
        options["default"] = default

    printed, complaint = Capture(sys.stdout), Capture(sys.stderr)

    try:
        with explained(target, arguments), redirect_stdout(printed), redirect_stderr(complaint):
            return tyro.cli(
                target, args=list(arguments), prog=prog, description=description, **options
            )
    except SystemExit as stopped:
        if stopped.code:
            raise UsageError(first_sentence(complaint.getvalue(), prog)) from None

        print(fitted(printed.getvalue()), end="")
        raise


class Capture(StringIO):
    """What is printed, kept; colours are used where the real stream would show them."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()


def deferred(command: Callable[..., Value]) -> Callable[..., Callable[[], Value]]:
    """The same signature, returning the call instead of making it: what fails later is no error of
    the parser.
    """

    @functools.wraps(command)
    def bind(*arguments: Any, **named: Any) -> Callable[[], Value]:
        return functools.partial(command, *arguments, **named)

    bind.__doc__ = reflowed(inspect.cleandoc(command.__doc__ or ""))
    return bind


def reflowed(docstring: str) -> str:
    """Each paragraph, and each argument's description, on a line of its own: tyro keeps the breaks
    of the source.
    """
    joined = re.sub(r"\n {5,}(?=\S)", " ", docstring)  # continued descriptions of arguments
    return re.sub(r"(?<=\S)\n(?=[^\s])", " ", joined)


def fitted(text: str) -> str:
    """Help in the width of the terminal: tyro wraps the texts of flags, but not the description
    above them.
    """
    width = shutil.get_terminal_size().columns
    lines = [
        line.replace("(default: )", "").rstrip() if "(default: )" in line else line
        for line in text.split("\n")
    ]
    whole = (
        line if line.startswith((" ", "\x1b")) else textwrap.fill(line, width) for line in lines
    )

    return "\n".join(
        line.rstrip() for number, line in enumerate(whole) if line or not lines[number]
    )


@contextmanager
def explained(target: Callable[..., Any], arguments: Sequence[str]) -> Iterator[None]:
    """Raise UsageError with our own sentence where tyro would print its own and exit."""
    from tyro import (
        # private, so a later tyro may not have it: then first_sentence() is what we can say
        _errors,
    )

    if not hasattr(_errors, "on_parse_error"):
        yield
        return

    names = [name for flag in flags_of(target) for name in flag.names]

    def refuse(event: Any) -> None:
        raise UsageError(usage_sentence(event, arguments, names))

    with _errors.on_parse_error(refuse):
        yield


@contextmanager
def naming_flags(*targets: Callable[..., Any]) -> Iterator[None]:
    """An error whose message begins with the name of a flag (`length: expected ...`) is wrong
    usage.
    """
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        named = re.match(r"(\w+):", str(error))
        if named and named[1] in {flag.field for target in targets for flag in flags_of(target)}:
            raise UsageError(str(error)) from error

        raise


def first_sentence(complaint: str, prog: str) -> str:
    """The first line of a complaint below its title, without the box around it."""
    lines = [line.strip("│╭╮╰╯─ ") for line in complaint.splitlines()]
    said = [line for line in lines if line.strip("-") and not line.startswith("For full helptext")]
    told = said[min(1, len(said) - 1)] if said else "the command line cannot be read"

    return f"{told}; {prog} --help shows the usage"
