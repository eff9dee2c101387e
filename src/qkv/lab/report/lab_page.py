"""The page of an experiment: one HTML file with claim, set-up, figure, table and verdict."""

from __future__ import annotations

from pathlib import Path

from qkv.insight.render.figures.figure_style import save
from qkv.lab.lab_results import Results
from qkv.lab.report.lab_figure import draw_results


def write_page(results: Results, folder: Path) -> None:
    """Write the figure as PNG and SVG, and the page."""
    name = results.experiment.name
    for ending in ("png", "svg"):
        save(lambda: draw_results(results), folder / f"{name}.{ending}")
