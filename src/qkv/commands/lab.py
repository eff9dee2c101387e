"""qkv lab: what the lectures show, each as one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.command_line.parsing import run_one_of
from qkv.lab import matrices
from qkv.lab.demo import DEMO_FOLDER
from qkv.lab.positions import positions


def cats(out: Path | None = None, demo: Path = DEMO_FOLDER / "turkish") -> None:
    """The lecture's first matrix: "cats chase mice" aligned with "kediler fareleri kovalar".

    Args:
        out: Write a .html, .png, .svg or .pdf file as well.
        demo: The folder of the translator that qkv demo trains; if it is missing, the translator
            is trained there, which takes a minute.
    """
    matrices.cats(out, demo)


def mask(out: Path | None = None, model: str | None = None, layer: int = 0, head: int = 0) -> None:
    """The lecture's second: "the quick brown" with and without a causal mask, scores and weights.

    Args:
        out: Write a .html, .png, .svg or .pdf file as well.
        model: A GPT whose head is shown with and without its mask (default: vectors set by hand).
        layer: Its layer, counted from 0.
        head: Its head, counted from 0.
    """
    matrices.mask(out, model, layer, head)


EXPERIMENTS: dict[str, Callable[..., Any]] = {"cats": cats, "mask": mask, "positions": positions}


def run(arguments: list[str]) -> None:
    """Run the experiment that the first argument names."""
    run_one_of(EXPERIMENTS, arguments, "qkv lab")
