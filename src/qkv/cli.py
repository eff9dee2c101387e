"""The command line: `qkv train`, `qkv generate`, `qkv translate` ...; `qkv --help` lists them all.

Each command's module is imported only when it is called, so that help, the version and short
commands start at once: nothing here imports torch, tyro or rich. Exit status: 0, or 1 for an error,
2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import qkv
from qkv.command_line.listing import COMMANDS, listed

INTERRUPTED = (
    130  # as of a program that Ctrl-C ended, so that `qkv train ... && ...` does not go on
)
BROKEN_PIPE = 141  # as of a program that SIGPIPE ended


def main() -> None:
    try:
        dispatch(sys.argv[1:])
        if sys.stdout is not None:
            # here, where an error can still be told, and not while Python shuts down
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        abandon_output()
        sys.exit(BROKEN_PIPE)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # which rich turns into this
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
        from qkv.command_line.usage_errors import UsageError, suggestion

        what, names = (
            ("flag", ["--help", "--version"])
            if name.startswith("-")
            else ("command", list(COMMANDS))
        )
        meant = suggestion(name, names) or f"; expected one of {', '.join(names)}"
        raise UsageError(f"there is no {what} {name!r}{meant}")

    command = COMMANDS[name]
    module, _, function = command.target.partition(":")
    target = getattr(import_module(f"qkv.commands.{module}"), function)
    if not command.reads_arguments:
        from qkv.command_line.parsing import run_command

        run_command(target, rest, f"qkv {name}")
    elif target(rest) is False:
        sys.exit(INTERRUPTED)


def show_help() -> None:
    print(
        "usage: qkv COMMAND ...\n\nAttention and Transformers: learn it, train it, look inside it, serve it.\n"
    )
    for name, command in COMMANDS.items():
        print(listed(name, command.summary))

    print("\nqkv COMMAND --help explains each; qkv --version tells the version.")


def fail(error: Exception, arguments: Sequence[str]) -> None:
    """One sentence on standard error, and the status: 2 for wrong usage, 1 for everything else."""
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
    """Send standard output nowhere, if it cannot be written: Python would complain again while it
    shuts down.
    """
    try:
        if only_if_broken:
            sys.stdout.flush()
            return
    except (OSError, ValueError, AttributeError):
        pass

    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return


if __name__ == "__main__":
    main()
