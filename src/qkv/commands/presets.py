"""qkv presets: the models that can be built by name."""

from __future__ import annotations

from rich.console import Console

from qkv.lab.preset_table import preset_table


def run() -> None:
    """List the models that can be built by name, with their sizes."""
    Console().print(preset_table())
