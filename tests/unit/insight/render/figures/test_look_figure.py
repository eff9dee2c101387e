"""Figures of a look: each has the numbers of the look, and its tokens as plain text."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look
from qkv.insight.render.figures import look_figure
from qkv.insight.render.figures.figure_style import COLOURS, STYLE
from qkv.insight.render.views import View, ViewChoice, label
from support.looks import HOSTILE, look_at, translation

TOKENS = ("the", "quick", "brown", "fox")


def figure_of(look: Look, **how: object) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = look_figure.draw(look, ViewChoice(**how))  # type: ignore[arg-type]
        figure.draw_without_rendering()
    return figure


def names(figure: Figure, axis: str, axes: int = 0) -> list[str]:
    return [tick.get_text() for tick in getattr(figure.axes[axes], f"get_{axis}ticklabels")()]


def test_a_head_is_an_image_of_its_weights_with_numbers() -> None:
    look = look_at(TOKENS)
    figure = figure_of(look, view="head", layer=1, head=2)
    weights = look.attention[0].layers[1][2].numpy()
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.images[0].get_array(), weights)
    assert {(text.get_position(), text.get_text()) for text in axes.texts} == {
        ((column, row), f"{value:.2f}")
        for (row, column), value in np.ndenumerate(weights)
        if column <= row  # the rest is hatched
    }
    (hatched,) = axes.patches
    assert hatched.get_hatch()
    for row, column in np.ndindex(weights.shape):
        assert hatched.get_path().contains_point((column, row)) == (column > row)
    assert names(figure, "x") == names(figure, "y") == list(TOKENS)
    assert figure.get_suptitle() == "Self-attention, layer 1, head 2"


def test_source_on_one_axis_and_target_on_the_other() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    figure = figure_of(translation(["cats", "chase", "mice"], ["kediler", "fareleri"], weights))
    assert (names(figure, "y"), names(figure, "x")) == (
        ["kediler", "fareleri"],
        ["cats", "chase", "mice"],
    )
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == (
        "target (queries)",
        "source (keys)",
    )
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), weights)


def test_words_are_joined() -> None:
    words = [WholeWord("the", [0]), WholeWord("quickbrown", [1, 2]), WholeWord("fox", [3])]
    look = look_at(TOKENS, words=words)
    figure = figure_of(look, head=0, words=True)
    assert names(figure, "x") == ["the", "quickbrown", "fox"]
    a, b, c, d = look.attention[0].layers[0][0][3].tolist()
    np.testing.assert_allclose(figure.axes[0].images[0].get_array()[2], [a, b + c, d], rtol=1e-6)


def test_all_heads_are_tiles_in_a_grid() -> None:
    look = look_at(TOKENS, layers=5, heads=2)
    figure = figure_of(look, view="heads")
    assert [names(figure, "y", block) for block in (0, 1)] == [["0", "1", "2"], ["3", "4"]]
    assert names(figure, "x") == ["0", "1"]
    images = [image for axes in figure.axes for image in axes.images]
    assert len(images) == 5 * 2
    for number, image in enumerate(images):
        np.testing.assert_allclose(
            image.get_array(), look.attention[0].overview[number // 2, number % 2]
        )
    one, beside, below = (image.get_extent() for image in images[:3])  # left, right, bottom, top
    assert beside[0] > one[1]
    assert below[3] > one[2]


def test_lines_are_as_opaque_as_their_weights_and_heads_have_colours() -> None:
    look = look_at(TOKENS)
    figure = figure_of(look, view="lines", layer=0, head=(0, 2))
    drawn = [lines for lines in figure.axes[0].collections if isinstance(lines, LineCollection)]
    for colour, head, lines in zip(COLOURS, (0, 2), drawn, strict=False):
        weights = look.attention[0].layers[0][head]
        expected = sorted(weight for weight in weights.flatten().tolist() if weight >= 0.02)
        assert [rgba[3] for rgba in lines.get_colors()] == pytest.approx(expected)
        assert {tuple(rgba[:3]) for rgba in lines.get_colors()} == {
            matplotlib.colors.to_rgb(colour)
        }
        ends = [(round(path[0, 1]), round(path[-1, 1])) for path in lines.get_segments()]
        assert [float(weights[row, column]) for row, column in ends] == pytest.approx(expected)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["head 0", "head 2"]
    one = figure_of(look_at(TOKENS, heads=9), view="lines")
    assert len(one.axes[0].collections) == 1
    assert one.get_suptitle() == "Self-attention, layer 0, mean of 9 heads"


def test_lines_have_the_source_on_the_left() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    figure = figure_of(
        translation(["cats", "chase", "mice"], ["kediler", "fareleri"], weights), view="lines"
    )
    (axes,) = figure.axes
    sides = [
        [text.get_text() for text in axes.texts if (text.get_position()[0] < 0.5) == left]
        for left in (True, False)
    ]
    assert sides == [["cats", "chase", "mice"], ["kediler", "fareleri"]]
    assert axes.get_title(loc="left") == "translator: right attends to left"
    (lines,) = axes.collections
    ends = {
        (path[0, 1], path[-1, 1]): colour[3]
        for path, colour in zip(lines.get_segments(), lines.get_colors(), strict=True)
    }
    # the two tokens of the target are centred beside the three of the source
    expected = {
        (s, t + 0.5): float(weights[t, s]) for t in range(2) for s in range(3) if weights[t, s]
    }
    assert ends == pytest.approx(expected)
    self_attention = figure_of(look_at(TOKENS), view="lines").axes[0]
    assert self_attention.get_title(loc="left") == "made up: left attends to right"


@pytest.mark.parametrize(
    ("bidirectional", "title"),
    [(False, "Predicted next tokens"), (True, "Predicted token at each position")],
)
def test_the_title_names_what_the_model_predicts(bidirectional: bool, title: str) -> None:
    look = replace(look_at(TOKENS), bidirectional=bidirectional)
    flipped = [kind._replace(causal=not kind.causal) for kind in look.attention]
    for variant in (look, replace(look, attention=flipped), replace(look, attention=[])):
        assert figure_of(variant, view="next").get_suptitle().startswith(title)


def test_next_and_lens_show_the_predictions() -> None:
    look = look_at(TOKENS)
    figure = figure_of(look, view="next")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.75] * 4
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [text for token in TOKENS for text in (f"after {token} 75%", "other 12%")]
    figure = figure_of(look, view="lens")
    np.testing.assert_allclose(
        figure.axes[0].images[0].get_array(), np.outer([0, 1 / 3, 2 / 3], np.ones(4))
    )
    assert names(figure, "y") == ["embedding", "layer 0", "layer 1"]
    assert figure.axes[0].texts[-1].get_text() == "2 fox"


def test_norms_are_median_and_range() -> None:
    figure = figure_of(look_at(TOKENS), view="norms")
    residual, gradient = figure.axes
    (line,) = residual.lines
    np.testing.assert_allclose(line.get_ydata(), [2.5, 5, 7.5])
    band = residual.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (1, 12)
    np.testing.assert_allclose(
        gradient.lines[0].get_ydata(), [0.02, 0.04, 0.06]
    )  # without the last position
    band = gradient.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose((band[:, 1].min(), band[:, 1].max()), (0.01, 0.09))
    for panel in (0, 1):
        assert names(figure, "x", panel) == ["embedding", "layer 0", "layer 1"]
    many = names(figure_of(look_at(TOKENS, layers=48, heads=1), view="norms"), "x")
    assert many[:2] == ["embedding", "layer 3"]
    assert len(many) <= 16


def test_entropy_and_distance_are_two_maps() -> None:
    look = look_at(TOKENS)
    entropy, distance = figure_of(look, view="numbers").axes
    np.testing.assert_allclose(entropy.images[0].get_array(), look.attention[0].entropy)
    assert [text.get_text() for text in distance.texts] == [
        "0.0",
        "1.0",
        "2.0",
        "3.0",
        "4.0",
        "5.0",
    ]
    assert len(figure_of(translation(["a"], ["b"], torch.ones(1, 1)), view="numbers").axes) == 1


def test_attribution_is_drawn_beside_attention() -> None:
    look = look_at(TOKENS)
    left, right = figure_of(look, view="attribution", layer=1, head=1).axes
    np.testing.assert_allclose(left.images[0].get_array(), look.attention[0].layers[1][1])
    np.testing.assert_allclose(right.images[0].get_array(), look.attribution)


@pytest.mark.parametrize("view", get_args(View))
def test_svg_has_every_token_as_text(view: View, tmp_path: Path) -> None:
    """Markup, formulas, emoji, Chinese, Arabic and a token of 10,000 letters are escaped."""
    out = tmp_path / "look.svg"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look_at(HOSTILE).save(out, view=view)
    texts = [
        "".join(text.itertext())
        for text in ElementTree.parse(out).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]
    if view in ("head", "lines", "next", "attribution"):
        assert {label(token) for token in HOSTILE} <= set(texts)
    assert max(map(len, texts)) < 100


@pytest.mark.parametrize("view", get_args(View))
def test_one_token_and_a_long_text_can_be_drawn(view: View) -> None:
    figure_of(look_at(["one"]), view=view)
    tokens = [f"w{position}" for position in range(1024 if view in ("head", "lines") else 200)]
    figure = figure_of(look_at(tokens, layers=1, heads=1), view=view)
    assert max(figure.get_size_inches()) < 40
    shown = (
        len(figure.axes[0].texts)
        if view == "lines"
        else len(names(figure, "x")) + len(names(figure, "y"))
    )
    assert shown <= 140


@pytest.mark.parametrize("view", ["head", "lines", "heads", "numbers", "norms"])
def test_nothing_is_cut_off(view: View) -> None:
    """Every text lies inside the figure, and no two names of one axis overlap."""
    look = look_at(["internationalisation", "the", "quick", "brown", "fox", "jumps", "over"])
    figure = figure_of(look, view=view)
    page = figure.bbox
    for axes in figure.axes:
        texts = [
            *axes.get_xticklabels(),
            *axes.get_yticklabels(),
            *axes.texts,
            axes.title,
            axes.xaxis.label,
        ]
        for text in (text for text in texts if text.get_text()):
            box = text.get_window_extent()
            assert page.x0 <= box.x0, text
            assert box.x1 <= page.x1, text
            assert page.y0 <= box.y0, text
            assert box.y1 <= page.y1, text
        upright = [tick.get_window_extent() for tick in axes.get_yticklabels() if tick.get_text()]
        assert all(low.y1 <= high.y0 or high.y1 <= low.y0 for low, high in pairwise(upright))


def test_errors_name_the_missing_view(tmp_path: Path, without_shape_checks: None) -> None:
    look = translation(["a"], ["b"], torch.ones(1, 1))
    for view in ("next", "lens", "norms", "attribution"):
        with pytest.raises(ValueError, match=f"{view}: "):
            look_figure.draw(look, ViewChoice(view=view))
    with pytest.raises(ValueError, match="out: expected the name of a"):
        look.save(tmp_path / "look.gif")
    with pytest.raises(
        ValueError,
        match=r"^view: expected one of walk, model, head, heads, lines, next, .*, not 'bogus'$",
    ):
        look.save(tmp_path / "look.png", view="bogus")
    assert not list(tmp_path.iterdir())
