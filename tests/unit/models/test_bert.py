"""BERT's own: sentences, the pooled vector, whether one sentence follows the other."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.hooks import hook_points
from support.families import bert, words


def test_logits_are_those_of_the_hidden_states() -> None:
    model, ids = bert(), words(2, 5)
    assert_close(model(ids), model.logits(model.hidden(ids)))


def test_masked_places_alone_can_be_guessed() -> None:
    """The output layer is the largest: it need not run where nothing is asked."""
    model, ids = bert(), words(2, 5)
    hidden = model.hidden(ids)
    where = torch.tensor([[True, False, False, True, False], [False, True, False, False, False]])
    assert_close(model.logits(hidden[where]), model.logits(hidden)[where])


def test_the_pooled_vector_is_tanh_of_a_layer_over_the_first_word() -> None:
    model = bert()
    hidden = model.hidden(words(2, 5))
    right = torch.tanh(hidden[:, 0] @ model.pooler.dense.weight.T + model.pooler.dense.bias)
    assert_close(model.pool(hidden), right)
    assert_close(
        model.next_sentence_logits(hidden), right @ model.next_sentence.weight.T + model.next_sentence.bias
    )


def test_the_sentence_a_word_is_from_matters() -> None:
    model, ids = bert(), words(1, 5)
    first, both = torch.zeros(1, 5, dtype=torch.long), torch.tensor([[0, 0, 0, 1, 1]])
    assert_close(model(ids), model(ids, segments=first))
    assert not torch.allclose(model(ids), model(ids, segments=both))


def test_every_word_sees_every_word() -> None:
    model, ids = bert(depth=1), words(1, 5)
    for k in range(5):
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % 13
        assert not torch.isclose(model(other), model(ids)).all(-1).any()


def test_what_a_bert_does_not_have_it_says() -> None:
    model = bert(mlm_head=False, pooler=False, next_sentence=False)
    hidden = model.hidden(words(1, 3))
    with pytest.raises(ValueError, match="mlm_head: this BERT is an encoder only"):
        model.logits(hidden)
    with pytest.raises(ValueError, match="pooler: this BERT has none"):
        model.pool(hidden)
    with pytest.raises(ValueError, match="next_sentence: this BERT has no such layer"):
        model.next_sentence_logits(hidden)


def test_a_bert_without_segments_refuses_them() -> None:
    with pytest.raises(ValueError, match="segments: this BERT tells no sentences apart"):
        bert(segments=0)(words(1, 3), segments=torch.zeros(1, 3, dtype=torch.long))


def test_an_encoder_alone_has_no_logits_to_listen_to() -> None:
    assert "logits" in hook_points(bert())
    assert "logits" not in hook_points(bert(mlm_head=False))
