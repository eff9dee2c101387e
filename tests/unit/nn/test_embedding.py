"""Embeddings: token, position and segment are joined as configured."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.embedding import Embedding
from qkv.nn.position import sinusoidal

V, E, CONTEXT = 11, 6, 8
ids = torch.tensor([[3, 0, 10], [1, 1, 2]])
positions = torch.tensor([[0, 1, 2], [5, 6, 7]])


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("join", ["sum", "product"])
def test_token_and_position_are_joined(position: str, join: str) -> None:
    embedding = Embedding(V, E, context=CONTEXT, position=position, join=join)
    where = (
        embedding.position.weight[positions] if position == "learned" else sinusoidal(positions, E)
    )
    tokens = embedding.token.weight[ids]
    assert_close(embedding(ids, positions), tokens + where if join == "sum" else tokens * where)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize(("given", "width"), [(None, 3), (2, 2)])
def test_token_and_position_are_concatenated(position: str, given: int | None, width: int) -> None:
    embedding = Embedding(
        V, E, context=CONTEXT, position=position, join="concatenate", position_width=given
    )
    x = embedding(ids, positions)
    where = (
        embedding.position.weight[positions]
        if position == "learned"
        else sinusoidal(positions, width)
    )
    assert x.shape == (2, 3, E)
    assert_close(x[..., : E - width], embedding.token.weight[ids])
    assert_close(x[..., E - width :], where)


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative", "none"])
@pytest.mark.parametrize("join", ["sum", "concatenate"])
def test_positions_that_live_in_attention_leave_the_embedding_alone(
    position: str, join: str
) -> None:
    embedding = Embedding(V, E, context=CONTEXT, position=position, join=join)
    assert_close(embedding(ids, positions), embedding.token.weight[ids])
    assert [name for name, _ in embedding.named_parameters()] == ["token.weight"]


def test_scaled_embeddings_are_sqrt_width_times_the_table() -> None:
    embedding = Embedding(V, E, context=CONTEXT, position="sinusoidal", scaled=True)
    assert_close(
        embedding(ids, positions), embedding.token.weight[ids] * E**0.5 + sinusoidal(positions, E)
    )


def test_one_row_of_positions_serves_all_rows() -> None:
    embedding = Embedding(V, E, context=CONTEXT)
    assert_close(embedding(ids, positions[:1]), embedding(ids, positions[:1].expand(2, -1)))


def test_segments_are_added_and_the_first_is_the_default() -> None:
    embedding = Embedding(V, E, context=CONTEXT, segments=2)
    plain = embedding.token.weight[ids] + embedding.position.weight[positions]
    segments = torch.tensor([[0, 1, 1], [0, 0, 1]])
    assert_close(embedding(ids, positions, segments), plain + embedding.segment.weight[segments])
    assert_close(embedding(ids, positions), plain + embedding.segment.weight[0])


def test_a_norm_brings_vectors_to_one_scale() -> None:
    x = Embedding(V, E, context=CONTEXT, norm_epsilon=0.0)(ids, positions)
    assert_close(x.var(-1, correction=0), torch.ones(2, 3), rtol=0, atol=1e-5)


def test_dropout_in_training_only() -> None:
    embedding = Embedding(V, E, context=CONTEXT, position="none", dropout=0.5)
    dropped = embedding(ids, positions)
    remaining = dropped != 0
    assert 0 < remaining.sum() < remaining.numel()
    assert_close(dropped[remaining], 2 * embedding.token.weight[ids][remaining])
    assert_close(embedding.eval()(ids, positions), embedding.token.weight[ids])
