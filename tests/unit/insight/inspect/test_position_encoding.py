"""Positional encodings equal those of the model, with the similarity of positions by distance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.position_encoding import position_encoding
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.position_figure import draw
from qkv.nn.position import rotary_angles, rotate, sinusoidal
from support.families import bert, gpt, rnn, transformer


def test_learned_and_sinusoidal_are_their_tables() -> None:
    model = bert(position="learned")
    result = position_encoding(model)
    assert_close(result.table, model.embedding.position.weight.detach().float())
    assert_close(position_encoding(transformer()).table, sinusoidal(torch.arange(256), 16))
    for table_encoding in (result, position_encoding(transformer(), positions=16)):
        unit = table_encoding.table / table_encoding.table.norm(dim=1, keepdim=True)
        apart = 3
        by_hand = torch.stack([unit[p] @ unit[p + apart] for p in range(len(unit) - apart)]).mean()
        assert_close(table_encoding.by_distance[0, apart], by_hand)
        assert_close(table_encoding.by_distance[0, 0], torch.tensor(1.0))


def test_rotary_similarity_is_that_of_a_rotated_vector() -> None:
    """Exact for a vector whose pairs of dimensions have equal length."""
    result = position_encoding(gpt(position="rotary", head_width=8), positions=32)
    x = torch.ones(1, 1, 32, 8)
    turned = rotate(x, rotary_angles(torch.arange(32).unsqueeze(0), 8))[0, 0]
    assert_close(result.by_distance[0], turned @ x[0, 0, 0] / 8)
    assert result.table.shape == (32, 4)


def test_alibi_and_relative_are_biases_by_distance() -> None:
    result = position_encoding(gpt(position="alibi"), positions=10)
    assert result.by_distance.shape == (4, 10)
    assert_close(result.by_distance[0], -0.25 * torch.arange(10))
    model = gpt(position="relative")
    result = position_encoding(model, positions=10)
    part = model.stack.blocks[0].attention.relative
    r = part.r(sinusoidal(torch.arange(10), 16, "halves").double()).detach().view(10, 4, 4)
    for head in range(4):
        assert_close(result.by_distance[head], (r[:, head] @ part.v[head, 0].detach() / 2).float())


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi", "relative"])
def test_the_figure_shows_the_table(position: str, tmp_path: Path) -> None:
    result = position_encoding(gpt(position=position), positions=12)
    figure = draw(result, "model")
    left, right = figure.axes[:2]
    assert_close(torch.tensor(left.images[0].get_array().data), result.table)
    assert len(right.lines) == len(result.by_distance)
    assert right.lines[0].get_ydata().tolist() == result.by_distance[0].tolist()
    out = figure_style.save(lambda: draw(result, "model"), tmp_path / "positions.png")
    assert out.stat().st_size > 5_000


def test_models_without_positional_encoding() -> None:
    with pytest.raises(ValueError, match=r"position: .*no positional encoding"):
        position_encoding(gpt(position="none"))
    with pytest.raises(ValueError, match=r"position: .*RNN"):
        position_encoding(rnn())
