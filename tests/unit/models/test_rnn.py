"""The RNN encoder-decoder equals its equations, step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from support.families import E, rnn, words

S = 5
T = 4


@pytest.mark.parametrize("attention", ["additive", "dot", "scaled_dot", "general"])
@pytest.mark.parametrize(("cell", "depth"), [("gru", 1), ("gru", 2), ("lstm", 2)])
def test_the_decoder_attends_before_every_token(attention: str, cell: str, depth: int) -> None:
    """The top layer's hidden vector is the query; the context enters the next step and output."""
    model = rnn(attention=attention, cell=cell, depth=depth)
    source = words(1, S)
    target = words(1, T)
    outputs, last = model.encoder(model.source_embedding(source))
    state = tuple(torch.tanh(h @ model.bridge.weight.T + model.bridge.bias) for h in last)
    right = []
    for t in range(T):
        q = state[0][-1, 0]
        scores = []
        for k in outputs[0]:
            if attention == "additive":
                hidden = torch.tanh(model.score.W_q.weight @ q + model.score.W_k.weight @ k)
                scores.append(model.score.v.weight[0] @ hidden)
            elif attention == "general":
                scores.append((model.score.A.weight @ q) @ (model.score.B.weight @ k))
            else:
                scores.append(q @ k / (math.sqrt(E) if attention == "scaled_dot" else 1))

        weights = torch.stack(scores).softmax(0)
        context = sum(weights[s] * outputs[0, s] for s in range(S))
        token = model.embedding.weight[target[0, t]]
        step, state = model.decoder(torch.cat([token, context]).view(1, 1, -1), state)
        joined = torch.tanh(
            model.combine.weight @ torch.cat([step[0, 0], context]) + model.combine.bias
        )
        right.append(model.head.weight @ joined + model.head.bias)

    assert_close(model(source, target)[0], torch.stack(right))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_without_attention_the_source_is_one_vector(cell: str) -> None:
    model = rnn(attention="none", cell=cell, bidirectional=False)
    source = words(1, S)
    target = words(1, T)
    _, last = model.encoder(model.source_embedding(source))
    outputs, _ = model.decoder(
        model.embedding(target), tuple(torch.tanh(model.bridge(h)) for h in last)
    )
    assert_close(model(source, target), model.head(outputs))
    assert last[0].shape == (1, 1, E)


def test_keys_are_projected_once_per_source() -> None:
    model = rnn(attention="additive")
    source = words(2, S)
    state = model.start(source)
    assert_close(state.key, model.score.W_k(state.encoded))
    assert rnn(attention="none").start(source).encoded is None


def test_a_tied_output_layer_is_the_target_embedding() -> None:
    model = rnn(tied=True)
    source = words(1, S)
    target = words(1, T)
    hidden = model.hidden(source, target)
    assert_close(model(source, target), hidden @ model.embedding.weight.T)
    assert model.head is None


def test_an_empty_target_has_no_outputs() -> None:
    for attention in ("none", "additive"):
        model = rnn(attention=attention)
        state = model.start(words(2, S))
        assert model.decode(words(2, 0), state).shape == (2, 0, 13)
        assert state.length == 0
