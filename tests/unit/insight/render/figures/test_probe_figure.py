"""Probe table and figure: a row and a point for each layer; names are plain text."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from qkv.insight.probing.probe_model import LayerScore, ProbeCondition, ProbeResult
from qkv.insight.probing.probe_tasks import Measure
from qkv.insight.render.figures.figure_style import STYLE
from qkv.insight.render.figures.probe_figure import (
    Line,
    ProbePanel,
    draw,
    draw_panels,
    draw_probed,
    probe_table,
)

LAYERS = ("embedding", "0", "1", "norm")
BEST = "0"


def scores(
    way: ProbeCondition, measure: Measure, first: float, intervals: bool = True
) -> list[LayerScore]:
    ends = (first - 0.01, first + 0.01) if intervals else (None, None)
    better = first + 0.1 if measure == "accuracy" else first - 0.1
    return [
        LayerScore(
            way,
            measure,
            layer,
            (first, first + n / 100),
            *ends,
            validation=better if layer == BEST else first,
        )
        for n, layer in enumerate(LAYERS)
    ]


def probed(intervals: bool = True, measures: tuple[Measure, ...] = ("accuracy",)) -> ProbeResult:
    results = []
    for measure in measures:
        results += scores("model", measure, 0.8, intervals) + scores(
            "random model", measure, 0.5, intervals
        )
        results += scores("shuffled labels", measure, 0.2, intervals)
    baseline = dict.fromkeys(measures, 0.25)
    return ProbeResult(
        "[b]$x$", "a.conllu:upos", measures, LAYERS, results, baseline, {"hidden": 0}, {}
    )


def printed(result: ProbeResult, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(probe_table(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_a_row_per_layer() -> None:
    text = printed(probed())
    rows = [line for line in text.splitlines() if "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == list(LAYERS)
    assert "80.0 [79.0, 81.0]" in rows[0]
    assert "81.5 [79.0, 81.0]" in rows[3]
    assert "majority-class baseline: 25.0 (accuracy, %)" in " ".join(text.split())
    assert (
        "bold: layer 0, the best on the validation split; all scores are of the test split"
        in " ".join(text.split())
    )
    assert "80.0 " in printed(probed(intervals=False))
    assert "0.80 [0.79, 0.81]" in printed(probed(measures=("distance", "accuracy")))


def test_two_measures_fit_a_narrow_terminal() -> None:
    text = printed(probed(measures=("distance", "accuracy")), width=80)
    assert "…" not in text
    (above, below) = (
        line.strip("┃").split("┃") for line in text.splitlines() if line.startswith("┃")
    )
    assert [name.strip() for name in above] == ["", *("model", "random", "shuffled") * 2]
    assert [name.strip() for name in below] == ["layer", *["distance"] * 3, *["accuracy"] * 3]
    assert "embedding" in text
    assert "controls: random model, shuffled labels" in text
    assert "controls" not in printed(replace(probed(), scores=scores("model", "accuracy", 0.8)))


def test_the_figure_has_a_line_per_way_and_a_point_per_layer(tmp_path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        line = Line("one", scores("model", "accuracy", 0.8), "#000000")
        other = Line("other", scores("random model", "accuracy", 0.5)[:3], "#ff0000", dashed=True)
        figure = draw(
            [ProbePanel("a", [line, other], {"level": 0.25}, "accuracy")] * 2, "title", "below"
        )
    for axes in figure.axes:
        drawn = {line.get_label(): line for line in axes.get_lines()}
        assert list(drawn["one"].get_ydata()) == pytest.approx([80, 80.5, 81, 81.5])
        assert len(list(drawn["other"].get_xdata())) == 3
        assert [tick.get_text() for tick in axes.get_xticklabels()] == list(LAYERS)
    for name in ("a.png", "a.svg", "a.pdf"):
        assert (
            draw_probed(probed(name != "a.svg", ("distance", "accuracy")), tmp_path / name)
            .stat()
            .st_size
            > 1000
        )
    written = (tmp_path / "a.svg").read_text()
    assert "[b]$x$: probing each layer for a.conllu:upos" in written
    assert "layer 0, the best on the validation split: 0.81; probe: linear; band: 95%" in written


@pytest.mark.parametrize("depth", [2, 16, 17, 30, 100])
def test_the_names_of_layers_do_not_overlap(depth: int) -> None:
    layers = ["embedding", *map(str, range(depth)), "norm"]
    line = Line(
        "one",
        [LayerScore("model", "accuracy", layer, (0.5,), None, None, 0.5) for layer in layers],
        "#000000",
    )
    with matplotlib.rc_context(STYLE):
        figure = draw([ProbePanel("a", [line], {}, "accuracy")] * 2, "title", "below")
        FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        boxes = [tick.get_window_extent() for tick in axes.get_xticklabels()]
        assert len(boxes) > 3
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        names = [tick.get_text() for tick in axes.get_xticklabels()]
        assert (names[0], names[1], names[-1]) == ("embedding", "0", "norm")


def test_other_endings_and_no_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path: .*\.png"):
        draw_probed(probed(), tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"^panels: .*one line"):
        draw_panels([ProbePanel("a", [], {}, "accuracy")], tmp_path / "a.png", "", "")
