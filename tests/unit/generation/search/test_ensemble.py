"""Several models are one: the mean of their probabilities, whatever their families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.generation import translate
from qkv.generation.prefill import next_logits
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.ensemble import Ensemble
from support.every_sequence import every_sequence, words_of
from support.families import gpt, rnn, transformer, words

START, END = 1, 2
PADDING_MASK = torch.arange(6) < torch.tensor([[6], [2], [4]])


def test_an_ensemble_of_one_is_the_model() -> None:
    source = words(3, 6)
    for model in (transformer(), rnn()):
        options: dict[str, Any] = {"start": START, "end": END, "length": 8}
        assert translate([model], source, PADDING_MASK, **options) == translate(
            model, source, PADDING_MASK, **options
        )
        alone, among = (
            beam_search(item, source, PADDING_MASK, n_best=4, **options)
            for item in (model, [model])
        )
        for one, other in zip(alone, among, strict=True):
            assert [item.ids for item in one] == [item.ids for item in other]
            assert [item.score for item in one] == pytest.approx([item.score for item in other])


def test_an_ensemble_gives_the_mean_probabilities_also_after_reordering() -> None:
    models, source, target = [transformer(), rnn(), rnn(cell="lstm")], words(3, 6), words(3, 4)
    ensemble = Ensemble(models)
    state = ensemble.start(source, PADDING_MASK)
    with torch.no_grad():
        for t in range(4):
            actual = next_logits(ensemble, target[:, t : t + 1], state)
            whole = [
                item(source, target[:, : t + 1], source_padding_mask=PADDING_MASK)[:, -1].softmax(
                    -1
                )
                for item in models
            ]
            assert_close(actual.exp(), torch.stack(whole).mean(0))
        assert state.length == 4
        rows = torch.tensor([2, 2, 0])
        state.reorder(rows)
        actual = next_logits(ensemble, target[:, :1], state)
        again = torch.cat([target[rows], target[:, :1]], dim=1)
        whole = [
            item(source[rows], again, source_padding_mask=PADDING_MASK[rows])[:, -1].softmax(-1)
            for item in models
        ]
        assert_close(actual.exp(), torch.stack(whole).mean(0))


def test_beam_search_on_an_ensemble_is_a_search_of_all_sequences() -> None:
    V, length = 4, 4
    models = [transformer(vocabulary=V), rnn(vocabulary=V)]
    source = words(2, 5, vocabulary=V)
    actual = beam_search(
        models, source, start=START, end=END, length=length, beams=V**length, n_best=30
    )
    for row, its in zip(source, actual, strict=True):

        def scores(ids: Tensor, row: Tensor = row) -> Tensor:
            with torch.no_grad():
                item = [model(row.expand(len(ids), -1), ids)[:, -1].softmax(-1) for model in models]
            return torch.stack(item).mean(0).log()

        every = every_sequence(scores, [START], END, length, V)
        right = {
            text: total / ((5 + words_of(text, length)) / 6) ** 0.6 for text, total in every.items()
        }
        best = sorted(right, key=lambda text: -right[text])[:30]
        assert [tuple(item.ids) for item in its] == best
        assert [item.score for item in its] == pytest.approx([right[text] for text in best])


def test_the_shortest_context_is_everyones() -> None:
    models = [
        transformer(position="learned", context=7),
        rnn(),
        transformer(position="learned", context=9),
    ]
    (actual,) = beam_search(models, words(1, 4), start=START, end=END, length=20, minimum=20)
    assert len(actual[0].ids) == 7


@pytest.mark.usefixtures("without_shape_checks")
def test_models_that_do_not_go_together_are_refused() -> None:
    options: dict[str, Any] = {"start": START, "end": END, "length": 3}
    with pytest.raises(ValueError, match=r"models: .*target vocabulary.* 13 and 14"):
        beam_search([transformer(), rnn(vocabulary=14)], words(1, 3), **options)
    with pytest.raises(ValueError, match=r"models: .*vocabulary"):
        translate([rnn(), rnn(source_vocabulary=7)], words(1, 3), **options)
    with pytest.raises(ValueError, match="models: expected one or more"):
        beam_search([], words(1, 3), **options)
    with pytest.raises(TypeError, match=r"models: .*Transformers"):
        beam_search([rnn(), gpt()], words(1, 3), **options)
