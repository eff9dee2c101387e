"""The command line: `qkv train`, `qkv generate`, `qkv translate` ...; `qkv --help` lists them all.

The module of a command is imported only when the command is called; nothing here imports torch,
tyro or rich, so that help and the version appear at once. Exit status: 0, or 1 for an error, 2 for
wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import qkv
from qkv.command_line.listing import COMMANDS, listed

INTERRUPTED = 130
"""The status of a program that SIGINT ended; `qkv train ... && ...` stops there."""
BROKEN_PIPE = 141
"""The status of a program that SIGPIPE ended."""


def main() -> None:
    """Run the command of sys.argv; errors become one sentence on standard error."""
    try:
        dispatch(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # an error can still be reported here, not at Python's shutdown
    except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
        abandon_output()
        sys.exit(BROKEN_PIPE)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # rich turns it into SystemExit
            abandon_output()
            sys.exit(BROKEN_PIPE)

        raise
    except KeyboardInterrupt:
        print("qkv: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if os.environ.get("QKV_TRACEBACK"):
            raise

        fail(error, sys.argv[1:])


def dispatch(arguments: list[str]) -> None:
    """Call the command that the first argument names."""
    while arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]

    if not arguments or arguments[0] in ("-h", "--help"):
        show_help()
        return

    if arguments[0] in ("-V", "--version"):
        print(f"qkv {qkv.__version__}")
        return

    name, *rest = arguments
    if name not in COMMANDS:
        refuse_command(name)

    command = COMMANDS[name]
    module, _, function = command.target.partition(":")
    target = getattr(import_module(f"qkv.commands.{module}"), function)
    if not command.reads_arguments:
        from qkv.command_line.parsing import run_command

        run_command(target, rest, f"qkv {name}")
    elif target(rest) is False:
        sys.exit(INTERRUPTED)


def refuse_command(name: str) -> NoReturn:
    """Raise UsageError with the closest command or flag."""
    from qkv.command_line.usage_errors import UsageError, suggestion

    kind = "command"
    names = list(COMMANDS)
    if name.startswith("-"):
        kind = "flag"
        names = ["--help", "--version"]

    hint = suggestion(name, names) or f"; expected one of {', '.join(names)}"
    raise UsageError(f"there is no {kind} {name!r}{hint}")


def show_help() -> None:
    """Print all commands with their summaries."""
    print("usage: qkv COMMAND ...\n")
    print("Attention and Transformers: learn it, train it, look inside it, serve it.\n")
    for name, command in COMMANDS.items():
        print(listed(name, command.summary))

    print("\nqkv COMMAND --help explains each; qkv --version prints the version.")


def fail(error: Exception, arguments: Sequence[str]) -> None:
    """Print one sentence on standard error and exit: 2 for wrong usage, 1 for other errors."""
    from qkv.command_line.usage_errors import UsageError

    message = str(error)
    if isinstance(error, OSError):
        from qkv.command_line.file_errors import os_error_sentence

        message = os_error_sentence(error, arguments)
    elif type(error) in (TypeError, RuntimeError):  # unforeseen
        message += "\n(QKV_TRACEBACK=1 shows where it happened)"

    print(f"qkv: {message}", file=sys.stderr)
    abandon_output(only_if_broken=True)
    sys.exit(2 if isinstance(error, UsageError) else 1)


def abandon_output(only_if_broken: bool = False) -> None:
    """Redirect standard output to nowhere: at shutdown Python would report a broken pipe again."""
    if only_if_broken:
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            return

    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # it is closed, or not a file
        return


if __name__ == "__main__":
    main()
