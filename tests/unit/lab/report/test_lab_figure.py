"""Figures: which means are marked, where they are drawn, and what the axes show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.lab import Panel, Results
from qkv.lab.report.forest_plot import draw_effect
from qkv.lab.report.lab_figure import draw_one, draw_results, legend_arms, marks, tick_text
from support.planted_experiment import ARMS, planted_results, results_of


def with_panels(results: Results, *panels: Panel) -> Results:
    return replace(results, experiment=replace(results.experiment, panels=panels))


def found(figure: Figure, prefix: str) -> dict[str, Any]:
    """The artists of a figure by the ids that begin so."""
    artists = {}
    for artist in figure.findobj():
        gid = artist.get_gid()
        if gid is not None and gid.startswith(prefix):
            artists[gid] = artist

    return artists


@pytest.mark.parametrize("panel", [0, 1, 2, 3])
def test_every_mark_is_drawn_at_its_mean(panel: int) -> None:
    results = planted_results()
    expected = {mark.gid: mark.interval.mean for mark in marks(results, panel)}
    drawn = found(draw_one(results, panel), f"mark-{panel}-")

    assert len(expected) == (6, 2, 4, 6)[panel]
    assert drawn.keys() == expected.keys()
    for gid, mean in expected.items():
        if panel != 3:  # the heat map has cells
            assert drawn[gid].get_ydata()[0] == pytest.approx(mean)


def test_each_seed_is_a_thin_line_and_the_mean_a_thick_one() -> None:
    results = planted_results(seeds=4)
    (axes,) = draw_one(results, 0).axes
    widths = [line.get_linewidth() for line in axes.lines if len(line.get_xdata()) == 3]
    assert widths.count(0.7) == 4 * 2
    assert widths.count(2.2) == 2
    assert len(axes.collections) == 2  # the intervals


def test_logarithmic_axes_end_at_what_was_measured() -> None:
    """The interval of two far seeds reaches below 0, which has no logarithm."""
    measured: dict[tuple[str, int], Any] = {}
    for seed, value in enumerate([1.0, 100.0]):
        for arm in ARMS:
            measured[arm, seed] = {"curve": {1: value, 10: value}}

    panel = Panel("curve", "x", "y", log="xy")
    (axes,) = draw_one(with_panels(results_of(measured), panel), 0).axes
    low, high = axes.get_ylim()
    top = results_of(measured).interval("with", "curve", 1).high
    assert 0.5 < low < 1
    assert top < high < 2 * top
    assert axes.get_xscale() == "log"


def test_ticks_stand_at_the_values_that_were_measured() -> None:
    results = planted_results()
    figure = draw_one(with_panels(results, Panel("curve", "length", "loss")), 0)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert sorted(axes.get_xticks()) == [1, 2, 4]
    assert axes.get_xlabel() == "length"
    assert axes.get_ylabel() == "loss"


def test_a_level_has_its_name_beside_the_panel() -> None:
    (axes,) = draw_one(planted_results(), 0).axes
    (text,) = [text for text in axes.texts if text.get_text() == "chance"]
    assert text.xy == (1, 1.0)


def test_arms_that_are_ticks_are_not_in_the_legend() -> None:
    results = planted_results()
    panels = results.experiment.panels
    assert legend_arms(results) == list(ARMS)
    assert legend_arms(with_panels(results, panels[1], panels[3])) == []
    assert legend_arms(with_panels(results, replace(panels[0], arms=("without",)))) == ["without"]
    assert draw_results(with_panels(results, panels[1])).legends == []
    (legend,) = draw_results(results).legends
    assert [text.get_text() for text in legend.get_texts()] == list(ARMS)


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (2, 2)), (4, (2, 2))])
def test_panels_wrap_to_two_columns(count: int, shape: tuple[int, int]) -> None:
    results = planted_results()
    figure = draw_results(with_panels(results, *results.experiment.panels[:count]))
    grid = figure.axes[0].get_subplotspec().get_gridspec()
    assert (grid.nrows, grid.ncols) == shape


def test_a_panel_may_draw_itself() -> None:
    def draw(axes: Axes, results: Results) -> None:
        axes.bar([0], [results.interval("with", "score").mean])

    panel = Panel("score", "x", "y", "own", log="y", levels={"chance": 2.0}, draw=draw)
    results = with_panels(planted_results(), panel)
    figure = draw_one(results, 0)
    assert figure.axes[0].get_yscale() == "log"
    assert [text.get_text() for text in figure.axes[0].texts] == ["chance"]
    assert len(figure.axes[0].patches) == 1
    assert marks(results, 0) == []
    assert legend_arms(results) == []


def test_words_on_the_x_axis_stand_in_a_row() -> None:
    results = with_panels(planted_results(), Panel("kinds", "kind", "score"))
    (axes,) = draw_one(results, 0).axes
    labels = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
    assert labels == ["noun", "a <long> & odd name"]


def test_one_seed_has_no_interval_and_many_sentences_no_thin_lines() -> None:
    (axes,) = draw_one(planted_results(seeds=1), 0).axes
    assert len(axes.collections) == 0

    curve = {x: [float(x + unit) for unit in range(60)] for x in (1, 2)}
    measured = {(arm, 0): {"curve": curve} for arm in ARMS}
    results = with_panels(results_of(measured, unit="sentence"), Panel("curve", "x", "y"))
    (axes,) = draw_one(results, 0).axes
    assert 0.7 not in [line.get_linewidth() for line in axes.lines]
    assert len(axes.collections) == 2


def test_the_effect_is_drawn_beside_zero_and_what_matters() -> None:
    (finding,) = planted_results(seeds=5).findings
    (axes,) = draw_effect(finding).axes
    marked = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert marked == [finding.effect.mean]
    upright = sorted(line.get_xdata()[0] for line in axes.lines if line.get_ydata()[-1] == 1)
    assert upright == [0, 0.5]
    (alone,) = planted_results(seeds=1).findings
    draw_effect(alone)  # its interval is infinite
    (same,) = [finding._replace(expects="same")]
    upright = [line.get_xdata()[0] for line in draw_effect(same).axes[0].lines]
    assert -0.5 in upright


def test_better_than_needed_lies_in_the_region_of_not_worse() -> None:
    (finding,) = planted_results(seeds=5).findings
    for expects, ends in (("more", (0.0, None)), ("not worse", (None, 0.5))):
        (axes,) = draw_effect(finding._replace(expects=expects)).axes
        (region,) = axes.patches
        left, right = axes.get_xlim()
        expected = (left if ends[0] is None else ends[0], right if ends[1] is None else ends[1])
        assert (region.get_x(), region.get_x() + region.get_width()) == pytest.approx(expected)


def test_ticks_are_short() -> None:
    assert tick_text(1e18) == "1e+18"
    values = [0.05, 1.0, 9999.0, 20000.0, 3e6, 4.5e9, 2e13, -20000.0]
    texts = ["0.05", "1", "9999", "20k", "3M", "4.5G", "20T", "-20k"]
    assert list(map(tick_text, values)) == texts
