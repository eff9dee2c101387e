"""Positional encodings as the model has them, and how alike places are by distance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.position_encoding import encoding
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.position_figure import draw
from qkv.nn.position import rotary_angles, rotate, sinusoidal
from support.families import bert, gpt, rnn, transformer


def test_learned_and_sinusoidal_are_their_tables() -> None:
    model = bert(position="learned")
    found = encoding(model)
    assert_close(found.table, model.embedding.position.weight.detach().float())
    assert_close(encoding(transformer()).table, sinusoidal(torch.arange(256), 16))
    for each in (found, encoding(transformer(), places=16)):
        unit = each.table / each.table.norm(dim=1, keepdim=True)
        apart = 3
        by_hand = torch.stack([unit[p] @ unit[p + apart] for p in range(len(unit) - apart)]).mean()
        assert_close(each.by_distance[0, apart], by_hand)
        assert_close(each.by_distance[0, 0], torch.tensor(1.0))


def test_rotary_says_how_alike_a_vector_is_to_itself_turned() -> None:
    """For a vector whose pairs are of equal length, which is exact."""
    found = encoding(gpt(position="rotary", head_width=8), places=32)
    x = torch.ones(1, 1, 32, 8)
    turned = rotate(x, rotary_angles(torch.arange(32).unsqueeze(0), 8))[0, 0]
    assert_close(found.by_distance[0], turned @ x[0, 0, 0] / 8)
    assert found.table.shape == (32, 4)


def test_alibi_and_relative_speak_of_distances() -> None:
    found = encoding(gpt(position="alibi"), places=10)
    assert found.by_distance.shape == (4, 10)
    assert_close(found.by_distance[0], -0.25 * torch.arange(10))
    model = gpt(position="relative")
    found = encoding(model, places=10)
    part = model.stack.blocks[0].attention.relative
    r = part.r(sinusoidal(torch.arange(10), 16, "halves").double()).detach().view(10, 4, 4)
    for head in range(4):
        assert_close(found.by_distance[head], (r[:, head] @ part.v[head, 0].detach() / 2).float())


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi", "relative"])
def test_the_picture_shows_the_table(position: str, tmp_path: Path) -> None:
    found = encoding(gpt(position=position), places=12)
    figure = draw(found, "mine")
    left, right = figure.axes[:2]
    assert_close(torch.tensor(left.images[0].get_array().data), found.table)
    assert len(right.lines) == len(found.by_distance)
    assert right.lines[0].get_ydata().tolist() == found.by_distance[0].tolist()
    out = figure_style.save(lambda: draw(found, "mine"), tmp_path / "places.png")
    assert out.stat().st_size > 5_000


def test_models_without() -> None:
    with pytest.raises(ValueError, match=r"position: this model has no positional encoding"):
        encoding(gpt(position="none"))
    with pytest.raises(ValueError, match=r"position: an RNN reads one word after the other"):
        encoding(rnn())
