"""qkv plot: the training curves of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro


def run(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path | None = None,
    x: Literal["step", "tokens", "seconds"] = "step",
) -> None:
    """Draw the curves of one or many runs to a PNG.

    Args:
        runs: The folders of the runs.
        out: The picture (default: curves.png in the run's folder, or here for several runs).
        x: What the x axis shows.
    """
    from qkv.insight.render.figures import training_curves

    print(training_curves.plot(runs, out, x=x))
