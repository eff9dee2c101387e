"""A picture of scores: a panel for each, every model in it, its interval drawn where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest

from qkv.insight.curves import STYLE
from qkv.insight.scores import draw, plot


def result(model: str, task: str, shots: int, **scores: tuple[float, float, float]) -> dict[str, Any]:
    return {
        "model": model, "task": task, "shots": shots, "rows": 20, "chance": 0.5,
        "scores": [
            {"name": name, "value": value, "low": low, "high": high, "percent": name == "accuracy",
             "higher_is_better": name == "accuracy"}
            for name, (value, low, high) in scores.items()
        ],
    }  # fmt: skip


RESULTS = [
    result(model, "agreement", shots, accuracy=(0.5 + 0.1 * shots, 0.4, 0.9), perplexity=(12.0, 10.0, 15.0))
    for model in ("one", "two")
    for shots in (0, 1, 4)
]


def test_every_score_has_a_panel_with_every_interval() -> None:
    with matplotlib.rc_context(STYLE):
        figure = draw(RESULTS)
    accuracy, perplexity = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["agreement", "agreement"]
    assert accuracy.get_ylabel() == "accuracy, %"
    assert perplexity.get_ylabel() == "perplexity (lower is better)"
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["0", "1", "4"]
    intervals = [tuple(line.get_ydata()) for line in accuracy.lines]  # type: ignore[arg-type]
    assert intervals.count((40.0, 90.0)) == 6
    assert intervals.count((50.0, 60.0, 90.0)) == 2  # the scores of each model
    assert (50.0, 50.0) in intervals  # guessing
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "95% interval"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_picture_is_written(tmp_path: Path, ending: str) -> None:
    out = plot({"results": RESULTS}, tmp_path / "new" / f"scores.{ending}")
    assert out.stat().st_size > 1000


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^plot: expected the name of a \.png, \.svg or \.pdf file, not "):
        plot({"results": RESULTS}, tmp_path / "scores.gif")
