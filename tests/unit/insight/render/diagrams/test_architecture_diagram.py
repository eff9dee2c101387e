"""Diagrams of models: the boxes, their order and their sizes are those of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

from qkv.insight.render.diagrams.architecture import amount, columns_of, draw_architecture
from qkv.models import (
    BERTConfig,
    GPTConfig,
    HeadConfig,
    RNNConfig,
    RNNLMConfig,
    TaskModelConfig,
    TransformerConfig,
    build,
    preset,
)
from qkv.models.model import Model

SMALL: dict[str, Any] = {"vocabulary": 50, "context": 16, "width": 8, "depth": 3, "heads": 2}


def titles(model: Model, column: int = 0) -> list[str]:
    """The titles of a column, from the bottom to the top."""
    parts = columns_of(model)[column]
    return [part.title for part in (*parts.below, *parts.block, *parts.above)]


def details(model: Model, column: int = 0) -> dict[str, str]:
    parts = columns_of(model)[column]
    return {part.title: part.detail for part in (*parts.below, *parts.block, *parts.above)}


def texts(model: Model) -> list[str]:
    """All texts of the drawn figure."""
    figure = draw_architecture(model, "name")
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_a_gpt_from_ids_to_probabilities() -> None:
    gpt = build(GPTConfig(**SMALL, kv_heads=1, hidden=20))
    assert titles(gpt) == [
        "token ids",
        "token embedding",
        "+ learned positions",
        "masked self-attention",
        "feed-forward",
        "layer norm",
        "output layer",
        "softmax",
    ]
    sizes = details(gpt)
    assert sizes["token embedding"] == "50 x 8"
    assert sizes["+ learned positions"] == "16 x 8"
    # queries, keys, values: 8 x (8 + 4 + 4) and 16 biases; output 8 x 8 and 8 biases
    assert sizes["masked self-attention"] == "2 heads of 4, 1 for keys; 216"
    assert sizes["feed-forward"] == "8 to 20 to 8, gelu; 348"
    assert sizes["output layer"] == "8 x 50 = embedding"
    assert columns_of(gpt)[0].repeats == 3
    assert columns_of(gpt)[0].norm_before


def test_shapes_and_repeats_are_written() -> None:
    shown = texts(build(GPTConfig(**SMALL)))
    for text in ("3 x", "(B, T)", "(B, T, 8)", "(B, T, 50)"):
        assert text in shown


def test_choices_of_a_config_change_the_picture() -> None:
    llama = build(GPTConfig(**SMALL, position="rotary", norm="rms", tied=False))
    assert "+ learned positions" not in titles(llama)
    assert "RMS norm" in titles(llama)
    assert details(llama)["masked self-attention"].endswith("rotary")
    assert "embedding" not in details(llama)["output layer"]

    after = build(GPTConfig(**SMALL, norm_placement="after"))
    assert titles(after).count("layer norm") == 0  # no norm follows the last block
    assert not columns_of(after)[0].norm_before

    beside = build(GPTConfig(**SMALL, join="concatenate", tied=False))
    assert "beside learned positions" in titles(beside)


def test_a_bert_attends_in_both_directions_and_predicts_masked_tokens() -> None:
    bert = build(BERTConfig(**SMALL))
    assert "self-attention" in titles(bert)
    assert "+ segments" in titles(bert)
    assert details(bert)["softmax"] == "predicts the masked token"
    encoder = build(BERTConfig(**SMALL, mlm_head=False))
    assert "output layer" not in titles(encoder)


def test_a_transformer_has_two_columns_and_cross_attention() -> None:
    config = TransformerConfig(**SMALL, decoder_depth=2, source_vocabulary=30, tied="two")
    transformer = build(config)
    assert titles(transformer)[:1] == ["source ids"]
    assert titles(transformer)[-1] == "encoder output"
    assert "self-attention" in titles(transformer)
    decoder = titles(transformer, 1)
    assert decoder.index("masked self-attention") < decoder.index("cross-attention")
    assert details(transformer)["token embedding"].startswith("30 x 8")
    assert details(transformer, 1)["token embedding"].startswith("50 x 8")
    assert {"3 x", "2 x", "keys, values"} <= set(texts(transformer))


def test_an_rnn_with_and_without_attention() -> None:
    with_attention = build(RNNConfig(vocabulary=50, width=8, cell="gru", attention="dot"))
    decoder = titles(with_attention, 1)
    assert decoder.index("join context vector c_t") < decoder.index("GRU")
    assert {"keys, values", "query s_{t-1}"} <= set(texts(with_attention))

    without = build(RNNConfig(vocabulary=50, width=8, cell="lstm", attention="none", depth=2))
    assert "join context vector c_t" not in titles(without, 1)
    assert details(without, 1)["LSTM"].startswith("2 layers")
    assert "last state" in texts(without)

    language_model = build(RNNLMConfig(vocabulary=50, width=8, cell="rnn", depth=2, residual=True))
    assert titles(language_model)[:3] == ["token ids", "token embedding", "RNN"]
    assert details(language_model)["RNN"] == "2 layers, residual; 288"  # 2 (8 x 8 + 8 x 8 + 16)
    assert details(language_model)["softmax"] == "predicts the next token"


def test_a_task_head_replaces_the_output_layer() -> None:
    head = HeadConfig(task="classify", labels=("a", "b", "c"), delimiter=1, extract=2, padding=0)
    model = build(TaskModelConfig(backbone=GPTConfig(**SMALL), head=head))
    assert titles(model)[-1] == "task head"
    assert details(model)["task head"] == "classify, last vector; 24"
    assert "(B, 1, 3)" in texts(model)


@pytest.mark.parametrize("name", ["transformer-base", "gpt1", "bert-base", "rnn-attention"])
def test_nothing_leaves_the_sheet(name: str) -> None:
    with torch.device("meta"):
        model = build(preset(name))

    figure = draw_architecture(model, name)
    renderer = FigureCanvasAgg(figure).get_renderer()
    whole = figure.bbox
    boxes = figure.findobj(FancyBboxPatch)
    written = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(boxes) > 8
    for artist in (*boxes, *written):
        extent = artist.get_window_extent(renderer)
        assert whole.x0 <= extent.x0 < extent.x1 <= whole.x1, artist
        assert whole.y0 <= extent.y0 < extent.y1 <= whole.y1, artist


def test_amounts_in_short() -> None:
    assert amount(torch.nn.Linear(3, 5)) == "20"
    assert amount(torch.nn.Linear(30, 50), None) == "1.55 k"
    assert amount(torch.nn.Linear(2000, 1000, device="meta")) == "2 M"
