"""The commands and their summaries, for `qkv --help`; imports nothing but the standard library."""

from __future__ import annotations

import shutil
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """A command: its summary and the function that runs it."""

    summary: str
    target: str
    """The function, as module:name in qkv.commands."""
    reads_arguments: bool = False
    """Whether the function parses the command line itself; it returns False if interrupted."""


def read_commands() -> dict[str, Command]:
    """The commands of commands.toml by their names."""
    table = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    return {name: Command(**values) for name, values in table.items()}


COMMANDS = read_commands()


def listed(name: str, summary: str) -> str:
    """A command and its summary, wrapped to the terminal's width or 100 columns."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        " ".join(summary.split()), width - 15, break_on_hyphens=False, break_long_words=False
    )
    first, *rest = lines or [""]

    return "\n".join([f"  {name:12} {first}", *(f"  {'':12} {line}" for line in rest)])
