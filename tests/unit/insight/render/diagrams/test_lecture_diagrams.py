"""Figures of the lectures: shapes of attention, tasks, the slide's weights, paths."""

from __future__ import annotations

import re

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

from qkv.insight.render.diagrams import lecture_diagrams
from qkv.insight.render.diagrams.attention_diagrams import draw_attention, draw_multi_head
from qkv.lab import board
from qkv.models import heads


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def heights(figure: Figure) -> dict[str, float]:
    """How high each text stands."""
    return {text.get_text(): text.get_position()[1] for text in figure.findobj(Text)}


def test_the_steps_of_attention_come_in_their_order() -> None:
    height = heights(draw_attention())
    steps = ["query Q", "Q K^T", "times 1 / sqrt(D)", "mask (optional)", "softmax", "weights V"]
    assert sorted(steps, key=height.__getitem__) == steps
    assert height["scores (B, H, T, S)"] < height["weights (B, H, T, S)"]


def test_multi_head_attention_joins_heads_and_projects_back() -> None:
    height = heights(draw_multi_head())
    steps = ["linear: query", "scaled dot-product attention", "concatenate heads", "linear: output"]
    assert sorted(steps, key=height.__getitem__) == steps
    assert {"(B, T, H D)", "output (B, T, E)"} <= height.keys()


def test_the_figure_of_tasks_has_the_table_of_heads() -> None:
    table = re.findall(r"^    (\w+) {2,}", heads.__doc__ or "", re.MULTILINE)
    assert set(lecture_diagrams.TASKS) == set(table) - {"task"}
    shown = texts(lecture_diagrams.draw_tasks())
    assert shown.count("linear") == 6
    assert shown.count("Transformer") == 8  # two rows each for similarity and choice


def test_decoder_steps_have_the_weights_of_the_board_and_lines_as_wide() -> None:
    figure = lecture_diagrams.draw_decoder_steps()
    assert lecture_diagrams.SLIDE_WEIGHTS == board.SLIDE_ALIGNMENT

    lines = [line.get_linewidth() for line in figure.axes[0].lines]
    widest = [max(range(3), key=lines[3 * step : 3 * step + 3].__getitem__) for step in range(3)]
    assert widest == [0, 2, 1]  # cats, mice, chase
    assert {"0.91", "reads kediler"} <= set(texts(figure))


def test_paths_are_a_chain_and_one_step() -> None:
    figure = lecture_diagrams.draw_paths()
    orange = lecture_diagrams.COLOURS[1]
    arrows = figure.findobj(FancyArrowPatch)
    thick = [arrow for arrow in arrows if arrow.get_linewidth() > 2]
    assert orange == "#D55E00"
    assert len(thick) == 5 + 1
    assert len(figure.axes[0].lines) == 36  # every output reads every input
