"""qkv lab: what the lectures show, each as one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.command_line.parsing import run_one_of
from qkv.lab.matrices import cats, mask
from qkv.lab.positions import positions

EXPERIMENTS: dict[str, Callable[..., Any]] = {"cats": cats, "mask": mask, "positions": positions}


def run(arguments: list[str]) -> None:
    """Run the experiment that the first argument names."""
    run_one_of(EXPERIMENTS, arguments, "qkv lab")
