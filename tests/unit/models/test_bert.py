"""What only BERT has: segments, the pooler and next-sentence prediction."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.hooks import hook_points
from support.families import bert, words


def test_logits_are_those_of_the_hidden_states() -> None:
    model = bert()
    ids = words(2, 5)
    assert_close(model(ids), model.logits(model.hidden(ids)))


def test_logits_of_masked_positions_only() -> None:
    """The output layer is the largest; it can be applied to some positions only."""
    model = bert()
    ids = words(2, 5)
    hidden = model.hidden(ids)
    where = torch.tensor([[True, False, False, True, False], [False, True, False, False, False]])
    assert_close(model.logits(hidden[where]), model.logits(hidden)[where])


def test_the_pooled_vector_is_tanh_of_a_layer_over_the_first_token() -> None:
    model = bert()
    hidden = model.hidden(words(2, 5))
    right = torch.tanh(hidden[:, 0] @ model.pooler.dense.weight.T + model.pooler.dense.bias)
    assert_close(model.pool(hidden), right)
    assert_close(
        model.next_sentence_logits(hidden),
        right @ model.next_sentence.weight.T + model.next_sentence.bias,
    )


def test_the_segment_of_a_token_matters() -> None:
    model = bert()
    ids = words(1, 5)
    first = torch.zeros(1, 5, dtype=torch.long)
    both = torch.tensor([[0, 0, 0, 1, 1]])
    assert_close(model(ids), model(ids, segments=first))
    assert not torch.allclose(model(ids), model(ids, segments=both))


def test_every_token_attends_to_every_token() -> None:
    model = bert(depth=1)
    ids = words(1, 5)
    for k in range(5):
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % 13
        assert not torch.isclose(model(other), model(ids)).all(-1).any()


def test_missing_heads_are_named() -> None:
    model = bert(mlm_head=False, pooler=False, next_sentence=False)
    hidden = model.hidden(words(1, 3))
    with pytest.raises(ValueError, match=r"mlm_head: .*encoder only"):
        model.logits(hidden)

    with pytest.raises(ValueError, match="pooler: "):
        model.pool(hidden)

    with pytest.raises(ValueError, match="next_sentence: "):
        model.next_sentence_logits(hidden)


def test_a_bert_without_segments_refuses_them() -> None:
    with pytest.raises(ValueError, match=r"segments: .*segments = 0"):
        bert(segments=0)(words(1, 3), segments=torch.zeros(1, 3, dtype=torch.long))


def test_an_encoder_only_has_no_logits_hook() -> None:
    assert "logits" in hook_points(bert())
    assert "logits" not in hook_points(bert(mlm_head=False))
