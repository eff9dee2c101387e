"""Prompting compared with fine-tuning: rows of the table, and points and intervals drawn."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import pytest
from rich.console import Console

from qkv.insight.render.figures.comparison_figure import (
    ZERO_X,
    Compared,
    comparison_table,
    draw,
    draw_comparison,
    spaced,
    x_of,
)
from qkv.insight.render.figures.figure_style import STYLE

POINTS = [
    Compared("fine-tuned", 1000, (0.90, 0.92), 0.88, 0.93),
    Compared("fine-tuned", 8, (0.50, 0.60), 0.51, 0.59),
    Compared("prompted", 0, (0.62,), 0.58, 0.66),
    Compared("prompted", 8, (0.7, 0.8), 0.71, 0.79),
]


def test_the_table_has_a_row_for_each_point(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=100).print(comparison_table(POINTS, 0.5))
    text = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text.splitlines()
        if line[0] == "│"
    ]
    assert rows == [
        ["prompted", "0", "62.0 [58.0, 66.0]", "1", ""],
        ["prompted", "8", "75.0 [71.0, 79.0]", "2", "± 7.1"],
        ["fine-tuned", "8", "55.0 [51.0, 59.0]", "2", "± 7.1"],
        ["fine-tuned", "1,000", "91.0 [88.0, 93.0]", "2", "± 1.4"],
    ]
    assert "[ ]: 95% intervals; random guessing: 50.0%" in text


def test_the_figure_has_both_ways_with_intervals_and_seeds() -> None:
    with matplotlib.rc_context(STYLE):
        figure = draw(POINTS, "title", "below", 0.5)
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.lines}
    for way, counts, means in (
        ("prompted", (0, 8), (62.0, 75.0)),
        ("fine-tuned", (8, 1000), (55.0, 91.0)),
    ):
        assert list(lines[way].get_ydata()) == pytest.approx(means)
        assert list(lines[way].get_xdata()) == pytest.approx(
            [x_of(count) for count in counts], abs=0.05
        )
    heights = [tuple(line.get_ydata()) for line in axes.lines]  # type: ignore[arg-type]
    for point in POINTS:
        assert (100 * point.low, 100 * point.high) in heights
        seeds = tuple(100 * accuracy for accuracy in point.accuracies)
        assert (seeds in heights) == (len(seeds) > 1)
    assert (50.0, 50.0) in heights  # guessing
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "8", "1,000"]
    (dots,) = [line for line in axes.lines if list(line.get_xdata()) == [ZERO_X / 2] * 2]
    assert dots.get_linestyle() == ":"  # between 0 and the scale


def test_the_x_axis_is_logarithmic_with_zero_left_of_one() -> None:
    assert [x_of(number) for number in (1, 10, 1000)] == pytest.approx([0, 1, 3])
    assert x_of(0) < x_of(1)
    assert spaced([0, 1, 8, 9, 1000], 0.1) == [0, 1, 9, 1000]
    assert math.isclose(x_of(9) - x_of(8), 0.0511, abs_tol=1e-3)


@pytest.mark.parametrize("points", [POINTS, POINTS[:1], POINTS[2:3]])
def test_a_figure_of_one_point_is_written(tmp_path: Path, points: list[Compared]) -> None:
    out = draw_comparison(points, tmp_path / "new" / "c.png", "$a_b$", "", None)
    assert out.stat().st_size > 1000


def test_no_points_and_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^points: .*one or more"):
        draw_comparison([], tmp_path / "c.png", "", "", None)
    with pytest.raises(ValueError, match=r"^path: .*\.png"):
        draw_comparison(POINTS, tmp_path / "c.txt", "", "", None)
