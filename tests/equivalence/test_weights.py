"""Weights and callbacks on scores or weights: same output, and replacements are used."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from qkv.nn.attention import (
    Additive,
    Blockwise,
    Causal,
    General,
    Strided,
    Window,
    attend,
    dot,
    scaled_dot,
)
from support.comparing import SINGLE, TIGHT
from support.draws import Call, Sizes, call, calls

SCORES = {
    "dot": lambda D: dot,
    "scaled_dot": lambda D: scaled_dot,
    "general": lambda D: General(D, width=3).double(),
    "additive": lambda D: Additive(D, width=3).double(),
}


@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=30)
@given(calls(longest=9))
def test_asking_for_weights_does_not_change_the_output(name: str, drawn: Call) -> None:
    score = SCORES[name](drawn.query.shape[-1])
    x = {"mask": drawn.mask, "bias": drawn.bias, "score": score}
    without, none = attend(drawn.query, drawn.key, drawn.value, **x)
    output, weights = attend(drawn.query, drawn.key, drawn.value, need_weights=True, **x)
    assert none is None
    assert weights is not None
    assert_close(output, without, rtol=0, atol=TIGHT)
    group = drawn.query.shape[1] // drawn.key.shape[1]
    assert_close(weights @ drawn.value.repeat_interleave(group, dim=1), output, rtol=0, atol=TIGHT)


@given(calls(longest=9), st.sampled_from([torch.float64, torch.float32]))
def test_weights_are_shares(drawn: Call, dtype: torch.dtype) -> None:
    """No weight is negative; those of a query sum to 1, or to 0 without keys; masked keys get 0."""
    x = drawn.to(dtype)
    _, weights = attend(x.query, x.key, x.value, mask=x.mask, bias=x.bias, need_weights=True)
    assert weights is not None
    T, S = weights.shape[-2:]
    allowed = torch.ones(T, S, dtype=torch.bool) if x.mask is None else x.mask.materialise(T, S)
    allowed = allowed.expand(weights.shape)
    assert (weights >= 0).all()
    assert not weights[~allowed].any()
    assert_close(weights.sum(-1), allowed.any(-1).to(dtype), rtol=0, atol=SINGLE)


@pytest.mark.parametrize("mask", [None, Causal(), Window(2), Causal() & Blockwise(3), Strided(2)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_callbacks_get_the_scores_and_the_weights(mask, need_weights: bool) -> None:
    x = call(Sizes(B=2, H=4, K=2, T=6, S=6, D=4, X=3), 0, mask)
    counts: dict[str, torch.Tensor] = {}

    def listen(name: str):
        def listener(value: torch.Tensor) -> torch.Tensor:
            assert name not in counts
            counts[name] = value
            return value

        return listener

    output, weights = attend(
        x.query,
        x.key,
        x.value,
        mask=mask,
        need_weights=need_weights,
        on_scores=listen("scores"),
        on_weights=listen("weights"),
    )
    scores = scaled_dot(x.query, x.key.repeat_interleave(2, dim=1))
    if mask is not None:
        scores = scores.masked_fill(~mask.materialise(6, 6), -math.inf)
    assert_close(counts["scores"], scores)
    assert_close(counts["weights"], scores.softmax(-1))
    assert_close(output, attend(x.query, x.key, x.value, mask=mask)[0])
    assert (weights is not None) == need_weights
    if weights is not None:
        assert_close(weights, counts["weights"])


def test_a_callback_may_replace_the_scores() -> None:
    """Scores of zero everywhere are a plain mean of the values."""
    x = call(Sizes(B=2, H=4, K=4, T=5, S=7, D=4, X=3), 0)
    output, weights = attend(x.query, x.key, x.value, on_scores=torch.zeros_like, need_weights=True)
    assert_close(output, x.value.mean(2, keepdim=True).expand_as(output))
    assert_close(weights, torch.full((2, 4, 5, 7), 1 / 7, dtype=torch.float64))


def test_a_callback_may_replace_the_weights() -> None:
    """All the weight on key 3 is the value at 3."""
    x = call(Sizes(B=2, H=4, K=4, T=5, S=7, D=4, X=3), 0)

    def only_key_3(weights: torch.Tensor) -> torch.Tensor:
        replaced = torch.zeros_like(weights)
        replaced[..., 3] = 1
        return replaced

    output, weights = attend(x.query, x.key, x.value, on_weights=only_key_3, need_weights=True)
    assert_close(output, x.value[:, :, 3:4].expand_as(output))
    assert_close(weights, only_key_3(torch.empty(2, 4, 5, 7, dtype=torch.float64)))


def test_the_gradient_reaches_what_callbacks_return() -> None:
    x = call(Sizes(B=1, H=1, K=1, T=3, S=4, D=2, X=2), 0)
    factor = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def output(factor: torch.Tensor) -> torch.Tensor:
        return attend(
            x.query, x.key, x.value, on_scores=lambda s: s * factor, on_weights=lambda w: w * factor
        )[0]

    assert torch.autograd.gradcheck(output, factor)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "block_sparse"])
def test_dropout_drops_weights_and_keeps_their_mean(kernel: str) -> None:
    """With values of 1 and dropout p, an output is the kept weights over 1 - p: 1 on average."""
    n = Sizes(B=4, H=4, K=2, T=64, S=64, D=4, X=1)
    x = call(n, 0, Causal()).to(torch.float32)
    output, _ = attend(
        x.query, x.key, torch.ones_like(x.value), mask=x.mask, dropout=0.25, kernel=kernel
    )
    assert output.std() > 0.01
    assert_close(output.mean(), torch.tensor(1.0), rtol=0, atol=0.05)
    last = attend(
        x.query, x.key, torch.ones_like(x.value), mask=x.mask, dropout=0.0, kernel=kernel
    )[0]
    assert_close(last, torch.ones_like(last))
