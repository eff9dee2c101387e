"""A row of the alignment has the weights with which its target token was predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.whole_words import whole_words
from qkv.nn.attention import attend
from qkv.nn.hooks import capture
from qkv.text import train
from support.families import RNN_KINDS, rnn, transformer, words

S, T, START = 5, 4, 1


@pytest.mark.parametrize(
    "kind", [{}, {"heads": 2, "decoder_depth": 3}, {"kv_heads": 2, "norm_placement": "before"}]
)
def test_a_token_has_the_weights_of_the_position_that_reads_the_previous_token(
    kind: dict[str, Any],
) -> None:
    model, source, target = transformer(**kind), words(1, S), words(1, T)
    for layer in range(len(model.decoder.blocks)):
        result = alignment(model, source, target, start=START, layer=layer)
        assert result.shape == (T, S)
        assert_close(result.sum(1), torch.ones(T, dtype=torch.float64))
        state = model.start(source)
        for t, id in enumerate([START, *target[0, :-1].tolist()]):
            with capture(model, f"decoder.blocks.{layer}.cross_attention.*") as captured:
                model.decode(torch.tensor([[id]]), state)
            at = f"decoder.blocks.{layer}.cross_attention."
            query, key, value = (captured[at + name] for name in ("query", "key", "value"))
            _, weights = attend(query, key, value, need_weights=True)  # (1, H, 1, S)
            assert weights is not None
            assert_close(result[t], weights[0, :, 0].mean(0))


@pytest.mark.parametrize(
    "kind", [kind for kind in RNN_KINDS if "none" not in kind and kind != "other source"]
)
def test_the_alignment_of_an_rnn(kind: str) -> None:
    model, source, target = rnn(**RNN_KINDS[kind]), words(1, S), words(1, T)
    result = alignment(model, source, target, start=START)
    assert result.shape == (T, S)
    state = model.start(source)
    for t, id in enumerate([START, *target[0, :-1].tolist()]):
        with capture(model, "weights") as captured:
            model.decode(torch.tensor([[id]]), state)
        assert_close(result[t], captured["weights"].flatten())


def test_a_target_token_changes_only_later_rows() -> None:
    """A Transformer's query is the token it reads; an RNN's is its state before that token."""
    for model, delay in ((transformer(), 0), (rnn(), 1)):
        source, target = words(1, S), words(1, T)
        result = alignment(model, source, target, start=START)
        for t in range(T):
            other = target.clone()
            other[0, t] = (other[0, t] + 1) % 13
            changed = (alignment(model, source, other, start=START) - result).abs().amax(1) > 1e-9
            assert changed.tolist() == [row > t + delay for row in range(T)]


def test_without_a_layer_it_is_the_mean_of_all() -> None:
    model, source, target = transformer(decoder_depth=3), words(1, S), words(1, T)
    layers = [alignment(model, source, target, start=START, layer=layer) for layer in range(3)]
    assert_close(alignment(model, source, target, start=START), sum(layers) / 3)
    assert_close(alignment(model, source, target, start=START, layer=-1), layers[2])
    assert not torch.allclose(layers[0], layers[2])


def test_dropout_is_off() -> None:
    model, source, target = transformer(dropout=0.5), words(1, S), words(1, T)
    expected = alignment(model, source, target, start=START)
    model.train()
    assert_close(alignment(model, source, target, start=START), expected)
    assert model.training


@pytest.mark.usefixtures("without_shape_checks")
def test_what_has_no_alignment_is_refused() -> None:
    source, target = words(1, S), words(1, T)
    with pytest.raises(ValueError, match=r"attention: .*none"):
        alignment(rnn(attention="none"), source, target, start=START)
    with pytest.raises(ValueError, match=r"layer: .*RNN"):
        alignment(rnn(), source, target, start=START, layer=0)
    with pytest.raises(ValueError, match=r"layer: .*not 2"):
        alignment(transformer(), source, target, start=START, layer=2)
    with pytest.raises(ValueError, match=r"source: .*not \(2, 5\)"):
        alignment(transformer(), words(2, S), target, start=START)
    with pytest.raises(ValueError, match=r"target: .*not \(1, 0\)"):
        alignment(transformer(), source, target[:, :0], start=START)


def test_pieces_are_grouped_into_whole_words() -> None:
    tokenizer = train("word-piece", ["play plays played walk walks walked"] * 5, 35)
    ids = [*tokenizer.encode("plays walked"), tokenizer.end]
    result = whole_words(tokenizer, ids)
    assert [word.text for word in result] == ["plays", "walked", ""]
    assert [position for word in result for position in word.positions] == list(range(len(ids)))
    assert whole_words(tokenizer, []) == []
