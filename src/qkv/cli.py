"""The command line: `qkv demo`, `qkv presets`."""

from __future__ import annotations

import sys

import tyro
from rich.console import Console

from qkv.lab import board

app = tyro.extras.SubcommandApp()


@app.command
def demo() -> None:
    """Show the lectures' tables, computed: from a hash table to attention, masks, two languages, the models."""
    board.show()


@app.command
def presets() -> None:
    """List the published models that can be built by name, with their sizes."""
    Console().print(board.preset_table())


def main() -> None:
    try:
        app.cli(prog="qkv", description="Attention and Transformers: learn it, train it, look inside it, serve it.")
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"qkv: {error}")


if __name__ == "__main__":
    main()
