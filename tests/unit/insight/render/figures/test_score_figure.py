"""Figure of evaluation scores: a panel per score with every model and its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest

from qkv import storage
from qkv.insight.render.figures.figure_style import STYLE
from qkv.insight.render.figures.score_figure import draw, plot


def result(
    model: str, task: str, shots: int, **scores: tuple[float, float, float]
) -> dict[str, Any]:
    return {
        "model": model, "task": task, "shots": shots, "rows": 20, "chance": 0.5,
        "scores": [
            {"name": name, "value": value, "low": low, "high": high, "percent": name == "accuracy",
             "higher_is_better": name != "perplexity"}
            for name, (value, low, high) in scores.items()
        ],
    }  # fmt: skip


RESULTS = [
    result(
        model,
        "agreement",
        shots,
        accuracy=(0.5 + 0.1 * shots, 0.4, 0.9),
        perplexity=(12.0, 10.0, 15.0),
    )
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
    assert (50.0, 50.0) in intervals  # random guessing
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "95% interval"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_figure_is_written(tmp_path: Path, ending: str) -> None:
    out = plot({"results": RESULTS}, tmp_path / "new" / f"scores.{ending}")
    assert out.stat().st_size > 1000


def test_a_score_without_an_interval_is_a_dot_alone() -> None:
    without = result("one", "agreement", 0, perplexity=(12.0, None, None))  # type: ignore[arg-type]
    figure = draw([without, result("two", "agreement", 0, perplexity=(13.0, 10.0, 15.0))])
    heights = [tuple(line.get_ydata()) for line in figure.axes[0].lines]  # type: ignore[arg-type]
    assert (12.0,) in heights
    assert (10.0, 15.0) in heights


@pytest.mark.parametrize("name", ["accuracy", "BLEU", "chrF"])
def test_scores_that_end_at_100_have_a_linear_axis(name: str) -> None:
    """Also when they are far apart: a tenth of the BLEU is a tenth of the height."""
    most = 0.9 if name == "accuracy" else 90.0
    far = [
        result(model, "t", 0, **{name: (at, at / 2, at)})
        for model, at in (("one", most), ("two", most / 100))
    ]
    assert draw(far).axes[0].get_yscale() == "linear"


def test_perplexities_far_apart_have_a_logarithmic_axis() -> None:
    far = [
        result(model, "t", 0, perplexity=(at, at, at))
        for model, at in (("one", 9.0), ("two", 900.0))
    ]
    assert draw(far).axes[0].get_yscale() == "log"
    near = [
        result(model, "t", 0, perplexity=(at, at, at))
        for model, at in (("one", 9.0), ("two", 12.0))
    ]
    assert draw(near).axes[0].get_yscale() == "linear"


def test_the_figure_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "scores.png"
    out.write_text("the old one")

    def broken(path: Path) -> None:
        raise OSError("no more")

    monkeypatch.setattr(storage, "flush", broken)
    with pytest.raises(OSError, match="no more"):
        plot({"results": RESULTS}, out)
    assert out.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [out]


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^plot: .*\.pdf"):
        plot({"results": RESULTS}, tmp_path / "scores.gif")
