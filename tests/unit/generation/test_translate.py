"""Sentences in, sentences out: in their order, each as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.search_loop import batches
from qkv.generation.translate import translate_texts
from qkv.models import RNN, RNNConfig, Transformer, TransformerConfig
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 60)
TEXTS = [
    "the cat sat on the mat. " * 3,
    "cats chase mice",
    "",
    "the mice ran.",
    "the cat " * 9,
    "mice",
]


def model(kind: str = "transformer", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    if kind == "rnn":
        return RNN(
            RNNConfig(vocabulary=TOKENIZER.vocabulary, width=16, depth=1, attention="additive")
        ).eval()
    config = TransformerConfig(
        vocabulary=TOKENIZER.vocabulary, context=40, width=16, depth=1, heads=2
    )
    return Transformer(config).eval()


def translated(models: list[Any], texts: list[str], **how: Any) -> list[list[Any]]:
    actual = dict(translate_texts(models, TOKENIZER, texts, **how))
    return [actual[position] for position in range(len(texts))]


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_each_is_translated_as_if_alone(kind: str) -> None:
    together = translated([model(kind)], TEXTS, beams=3, n_best=2)
    for text, actual in zip(TEXTS, together, strict=True):
        ((alone),) = translated([model(kind)], [text], beams=3, n_best=2)
        assert [item.ids for item in alone] == [item.ids for item in actual]
        assert [item.score for item in alone] == pytest.approx(
            [item.score for item in actual], abs=1e-4
        )


def test_the_translations_are_those_of_beam_search() -> None:
    translator = model()
    (actual,) = translated([translator], ["cats chase mice"], beams=3, n_best=3, length=12)
    source = [[*TOKENIZER.encode("cats chase mice"), TOKENIZER.end]]
    (expected,) = beam_search(
        translator, source, start=2, end=3, length=12, beams=3, n_best=3, forbidden=(2,)
    )
    assert [(item.ids, item.score) for item in actual] == [
        (item.ids, item.score) for item in expected
    ]
    assert [item.text for item in actual] == [TOKENIZER.decode(item.ids) for item in expected]
    assert [item.score for item in actual] == sorted((item.score for item in actual), reverse=True)


def test_sources_are_put_together_in_one_place() -> None:
    """Sources of one search have the same limit of length, which depends on their own lengths."""
    rows = [[0] * length for length in (3, 16, 0, 17, 40, 32, 16, 33)]
    assert batches(rows, 64) == [[4, 7, 5, 3, 1, 6, 0, 2]]
    assert batches(rows, 3) == [[4, 7, 5], [3, 1, 6], [0, 2]]
    assert batches(rows, 64, similar=16) == [[4, 7], [5, 3], [1, 6, 0], [2]]
    assert batches(rows, 2, similar=16) == [[4, 7], [5, 3], [1, 6], [0], [2]]
    assert batches(rows, 64, similar=1) == [[4], [7], [5], [3], [1, 6], [0], [2]]


def test_an_empty_line_stays_empty() -> None:
    assert [[item.text for item in actual] for actual in translated([model()], ["", " "])] == [
        [""],
        [""],
    ]


def test_several_models_translate_together() -> None:
    one, other = model(), model("rnn", seed=1)
    (alone,), (together,) = (
        translated(item, ["cats chase mice"]) for item in ([one], [one, other])
    )
    assert alone[0].score != together[0].score


def test_a_sentence_longer_than_the_context() -> None:
    with pytest.raises(
        ValueError,
        match=r"line 2: .*context",
    ):
        translate_texts([model()], TOKENIZER, ["cats", "cats " * 45])
    with pytest.raises(ValueError, match=r"text: .*context"):
        translate_texts([model()], TOKENIZER, ["cats " * 45])
    assert translated([model("rnn")], ["cats " * 45], length=3)


def test_a_tokenizer_without_a_start() -> None:
    without = Tokenizer(TOKENIZER.inner)
    without.start = None
    with pytest.raises(ValueError, match=r"tokenizer: .*translator"):
        translate_texts([model()], without, ["cats"])
