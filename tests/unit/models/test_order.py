"""Masks: no position depends on a later one, a window limits the past, and a set has no order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from support.families import (
    GPT_KINDS,
    RNN_KINDS,
    RNN_LM_KINDS,
    TRANSFORMER_KINDS,
    V,
    bert,
    gpt,
    rnn,
    rnn_lm,
    sources,
    transformer,
    words,
)

B, T, S = 2, 8, 5


def with_other_tokens(ids: Tensor, begin: int) -> Tensor:
    """Return the ids with every token from `begin` on replaced by another one."""
    other = ids.clone()
    other[:, begin:] = (other[:, begin:] + 1 + torch.arange(ids.shape[1] - begin) % (V - 1)) % V
    assert (other[:, begin:] != ids[:, begin:]).all()
    return other


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_a_future_token_never_changes_a_past_output_of_gpt(kind: str) -> None:
    model = gpt(**GPT_KINDS[kind])
    ids = words(B, T)
    right = model(ids)
    for begin in range(1, T):
        actual = model(with_other_tokens(ids, begin))
        assert_close(actual[:, :begin], right[:, :begin], rtol=0, atol=1e-12)
        assert not torch.isclose(actual[:, begin], right[:, begin]).all()


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_a_future_token_never_changes_a_past_output_of_the_decoder(kind: str) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind])
    source = sources(model.config, B, S)
    target = words(B, T)
    right = model(source, target)
    for begin in range(1, T):
        actual = model(source, with_other_tokens(target, begin))
        assert_close(actual[:, :begin], right[:, :begin], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", RNN_LM_KINDS)
def test_a_future_token_never_changes_a_past_output_of_an_rnn_language_model(kind: str) -> None:
    model = rnn_lm(**RNN_LM_KINDS[kind])
    ids = words(B, T)
    right = model(ids)
    for begin in range(1, T):
        actual = model(with_other_tokens(ids, begin))
        assert_close(actual[:, :begin], right[:, :begin], rtol=0, atol=1e-12)
        assert not torch.isclose(actual[:, begin], right[:, begin]).all()


@pytest.mark.parametrize("kind", RNN_KINDS)
def test_a_future_token_never_changes_a_past_output_of_an_rnn(kind: str) -> None:
    model = rnn(**RNN_KINDS[kind])
    source = sources(model.config, B, S)
    target = words(B, T)
    actual = model(source, with_other_tokens(target, 4))
    assert_close(actual[:, :4], model(source, target)[:, :4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory", [2, 8])
def test_a_future_token_never_changes_a_past_output_of_transformer_xl(memory: int) -> None:
    model = gpt(position="relative", memory=memory)
    ids = words(B, T)

    def run(ids: Tensor) -> Tensor:
        state = model.start()
        return torch.cat([model.decode(piece, state) for piece in ids.split(3, dim=1)], dim=1)

    right = run(ids)
    for begin in range(1, T):
        assert_close(
            run(with_other_tokens(ids, begin))[:, :begin], right[:, :begin], rtol=0, atol=1e-12
        )


def test_every_source_token_reaches_every_target_token() -> None:
    """The decoder is causal in the target only."""
    for model in (transformer(), rnn()):
        source = words(1, S)
        target = words(1, 4)
        right = model(source, target)
        for s in range(S):
            other = source.clone()
            other[0, s] = (other[0, s] + 1) % V
            assert not torch.isclose(model(other, target), right).all(-1).any()


@pytest.mark.parametrize(
    ("kind", "captured"),
    [
        ({"window": 3}, lambda q, k: q - k < 3),
        ({"sparse": "strided", "stride": 3}, lambda q, k: q - k < 3 or (q - k) % 3 == 0),
        ({"sparse": "fixed", "stride": 3}, lambda q, k: q // 3 == k // 3 or k % 3 == 2),
        (
            {"sparse": "strided", "stride": 3, "window": 5},
            lambda q, k: q - k < 5 and (q - k < 3 or (q - k) % 3 == 0),
        ),
    ],
    ids=["window", "strided", "fixed", "strided window"],
)
@pytest.mark.parametrize("position", ["rotary", "relative", "alibi", "none"])
def test_one_sparse_layer_attends_to_what_its_pattern_allows_and_no_more(
    kind: dict, captured, position: str
) -> None:
    model = gpt(depth=1, position=position, **kind)
    ids = words(1, T)
    right = model(ids)
    for k in range(T):
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % V
        changed = ~torch.isclose(model(other), right, rtol=0, atol=1e-12).all(-1)[0]
        assert changed.tolist() == [k <= q and captured(q, k) for q in range(T)]


def test_a_window_as_long_as_the_text_is_no_window() -> None:
    for make in (gpt, bert):
        for position in ("learned", "rotary", "alibi", "none"):
            model = make(position=position, window=T)
            full = make(position=position)
            full.load_state_dict(model.state_dict())
            ids = words(B, T)
            assert_close(model(ids), full(ids))
            narrow = make(position=position, window=T - 1)
            narrow.load_state_dict(model.state_dict())
            assert not torch.allclose(narrow(ids), full(ids))


def test_a_window_as_long_as_the_texts_is_no_window_in_a_transformer() -> None:
    model = transformer(window=T)
    full = transformer()
    full.load_state_dict(model.state_dict())
    source = words(B, S)
    target = words(B, T)
    assert_close(model(source, target), full(source, target))


SHUFFLED = torch.tensor([3, 0, 5, 4, 1, 2])


def test_without_positions_a_shuffled_set_gives_the_same_outputs_shuffled() -> None:
    model = bert(position="none")
    ids = words(B, 6)
    padding_mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    assert_close(model(ids[:, SHUFFLED]), model(ids)[:, SHUFFLED])
    assert_close(
        model(ids[:, SHUFFLED], padding_mask=padding_mask[:, SHUFFLED]),
        model(ids, padding_mask=padding_mask)[:, SHUFFLED],
    )


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi"])
def test_with_positions_a_shuffled_text_is_another_text(position: str) -> None:
    model = bert(position=position)
    ids = words(B, 6)
    assert not torch.allclose(model(ids[:, SHUFFLED]), model(ids)[:, SHUFFLED])


def test_a_causal_model_without_positions_attends_to_a_set() -> None:
    """The last token of a one-layer GPT does not know the order of the others."""
    model = gpt(position="none", depth=1)
    ids = words(B, 6)
    other = torch.cat([ids[:, [2, 4, 0, 1, 3]], ids[:, 5:]], dim=1)
    assert_close(model(other)[:, -1], model(ids)[:, -1])
