"""Parse the command line with tyro and call the command.

Wrong usage becomes a UsageError with one sentence (exit status 2); help is printed in the
terminal's width. Names of tyro's types (`{None}|FLOAT`) are never shown.
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
from dataclasses import is_dataclass
from io import StringIO
from typing import Any, TypeVar, get_type_hints

import tyro

from qkv.command_line.flag_types import flag_types
from qkv.command_line.flags import flags_of
from qkv.command_line.listing import listed
from qkv.command_line.usage_errors import UsageError, not_among, usage_sentence
from qkv.nn.config import described

Value = TypeVar("Value")


def run_command(command: Callable[..., Any], arguments: Sequence[str], prog: str) -> Any:
    """Call a function with the flags of the command line as its arguments.

    A command may also be a dataclass: its fields are the flags, and its method `run` is called.
    """
    call = parse(deferred(command), arguments, prog)
    with naming_flags(command):
        result = call()
        return result.run() if is_dataclass(command) else result


def run_one_of(commands: dict[str, Callable[..., Any]], arguments: Sequence[str], prog: str) -> Any:
    """Call the function that the first argument names; without one, list the functions."""
    name, *rest = arguments or ["--help"]
    if name not in ("-h", "--help"):
        check_subcommand(name, commands, prog)
        return run_command(commands[name], rest, f"{prog} {name}")

    print(f"usage: {prog} {{{','.join(commands)}}} ...\n")
    for subcommand, function in commands.items():
        summary = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
        print(listed(subcommand, summary))

    print(f"\n{prog} NAME --help explains each.")
    return None


def check_subcommand(name: str, names: Sequence[str] | dict[str, Any], prog: str) -> None:
    if name not in names:
        raise UsageError(f"{prog.removeprefix('qkv ')}: {not_among(name, list(names))}")


def parse(
    target: Callable[..., Value],
    arguments: Sequence[str],
    prog: str,
    *,
    default: Value | None = None,
    description: str | None = None,
) -> Value:
    """Return the dataclass, or the function's result, for this command line.

    Args:
        target: A dataclass, or a function whose parameters are the flags.
        arguments: The command line after the command.
        prog: The command as usage messages show it, such as "qkv train gpt".
        default: Values of the dataclass that the flags change.
        description: The text above the flags in --help.

    Raises:
        UsageError: The command line is wrong; the message is one sentence.
    """
    options: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,), "registry": flag_types()}
    if default is not None:
        options["default"] = default

    output = Capture(sys.stdout)
    errors = Capture(sys.stderr)

    try:
        with our_usage_errors(target, arguments), redirect_stdout(output), redirect_stderr(errors):
            return tyro.cli(
                target, args=list(arguments), prog=prog, description=description, **options
            )
    except SystemExit as stopped:
        if stopped.code:
            raise UsageError(first_sentence(errors.getvalue(), prog)) from None

        print(fit_help(output.getvalue()), end="")
        raise


class Capture(StringIO):
    """Captured output that is coloured if the real stream would show colours."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()


def deferred(command: Callable[..., Value]) -> Callable[..., Callable[[], Value]]:
    """A function of the same signature that returns the call without making it.

    tyro calls it while parsing; errors of the command itself are then raised outside the parser.
    """

    @functools.wraps(command)
    def bind(*arguments: Any, **named: Any) -> Callable[[], Value]:
        return functools.partial(command, *arguments, **named)

    # tyro reads the docstring below a wrapper, so that the wrapper must look like a function of
    # its own: with resolved types, a signature, and the help text in whole paragraphs.
    del bind.__wrapped__
    bind.__annotations__ = get_type_hints(command, include_extras=True)
    bind.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    docstring = inspect.cleandoc(command.__doc__ or "")
    if inspect.isclass(command):
        meanings = [" ".join(text.split()) for text in described(command)]
        docstring = "\n    ".join([f"{docstring}\n\nArgs:", *meanings])

    bind.__doc__ = reflowed(docstring)

    return bind


def reflowed(docstring: str) -> str:
    """Join the lines of each paragraph and argument: tyro keeps the source's line breaks."""
    joined = re.sub(r"\n {5,}(?=\S)", " ", docstring)  # continued descriptions of arguments
    return re.sub(r"(?<=\S)\n(?=[^\s])", " ", joined)


def fit_help(text: str) -> str:
    """Wrap the description of a help text to the terminal's width, and remove defaults of None.

    tyro wraps only the flags. A flag whose default is None explains in words what happens then.
    """
    width = shutil.get_terminal_size().columns
    text = re.sub(r"\s+\(default:\s+None\)", "", text)
    lines = []

    for line in text.split("\n"):
        if "(default: )" in line:
            line = line.replace("(default: )", "").rstrip()
            if not line:
                continue  # it held nothing else

        if not line.startswith((" ", "\x1b")):
            line = textwrap.fill(line, width)

        lines.append(line.rstrip())

    return "\n".join(lines)


@contextmanager
def our_usage_errors(target: Callable[..., Any], arguments: Sequence[str]) -> Iterator[None]:
    """Raise UsageError with our own sentence where tyro would print its own and exit."""
    # Private to tyro: if a later version does not have it, first_sentence() reads what it prints.
    from tyro import _errors

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
    """Turn an error that begins with the name of a flag (`length: ...`) into UsageError."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        prefix = re.match(r"(\w+):", str(error))
        fields = {flag.field for target in targets for flag in flags_of(target)}
        if prefix and prefix[1] in fields:
            raise UsageError(str(error)) from error

        raise


def first_sentence(errors: str, prog: str) -> str:
    """The first line below the title of tyro's error box."""
    lines = []
    for line in errors.splitlines():
        text = line.strip("│╭╮╰╯─ ")
        if text.strip("-") and not text.startswith("For full helptext"):
            lines.append(text)

    sentence = "the command line cannot be read"
    if lines:
        sentence = lines[min(1, len(lines) - 1)]

    return f"{sentence}; {prog} --help shows the usage"
