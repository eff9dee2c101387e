"""Weights without softmax: proportional to the scores, or the scores themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.nn.attention import Additive, Causal, General, Padding, attend, dot
from qkv.nn.attention.softmax import proportional, unnormalised

B, H, T, S, D = 2, 4, 3, 5, 6


def inputs(kv_heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(B, H, T, D, dtype=torch.float64)
    key = torch.randn(B, kv_heads, S, D, dtype=torch.float64)
    value = torch.randn(B, kv_heads, S, 2, dtype=torch.float64)
    return query, key, value


def test_by_hand() -> None:
    query = torch.tensor([[1.0, 2.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 1.5], [-1.0, 0.0]])  # scores 1, 3, -1
    value = torch.tensor([[10.0], [20.0], [40.0]])

    output, weights = attend(query, key, value, score=dot, normalise="none", need_weights=True)
    assert weights is not None
    assert weights.tolist() == [[1, 3, -1]]
    assert output.tolist() == [[30]]

    output, weights = attend(
        query, key, value, score=dot, normalise="proportional", need_weights=True
    )
    assert weights is not None
    assert weights.tolist() == [[0.25, 0.75, 0]]  # the negative score counts as 0
    assert output.tolist() == [[17.5]]


@pytest.mark.parametrize("kv_heads", [1, 2, H])
def test_masked_keys_have_no_weight_and_the_rest_is_the_equation(kv_heads: int) -> None:
    query, key, value = inputs(kv_heads)
    group = H // kv_heads
    wide_key = key.repeat_interleave(group, 1)
    wide_value = value.repeat_interleave(group, 1)
    allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    scores = (query @ wide_key.mT / math.sqrt(D)) * allowed

    output, weights = attend(query, key, value, mask=Causal(), normalise="none", need_weights=True)
    assert_close(weights, scores)
    assert_close(output, scores @ wide_value)

    shares = scores.relu() / scores.relu().sum(-1, keepdim=True).clamp(min=1e-300)
    output, weights = attend(
        query, key, value, mask=Causal(), normalise="proportional", need_weights=True
    )
    assert_close(weights, shares)
    assert_close(output, shares @ wide_value)


@pytest.mark.parametrize("normalise", ["proportional", "none"])
@pytest.mark.parametrize("score", [dot, General(D).double(), Additive(D).double()])
def test_gradients_are_those_of_differences(normalise: str, score: object) -> None:
    query, key, value = (x.requires_grad_() for x in inputs())
    bias = torch.full((T, S), 3.0, dtype=torch.float64)  # scores far from 0, where relu has a bend

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        options = {"score": score, "normalise": normalise, "mask": Causal(), "bias": bias}
        return attend(query, key, value, **options)[0]

    assert torch.autograd.gradcheck(output, (query, key, value))


@pytest.mark.parametrize("normalise", ["proportional", "none"])
def test_a_query_without_keys_gets_zeros_and_no_gradient(normalise: str) -> None:
    query, key, value = (x.requires_grad_() for x in inputs())
    nothing = Padding(torch.zeros(B, S, dtype=torch.bool))
    output, _ = attend(query, key, value, mask=nothing, normalise=normalise)  # type: ignore[arg-type]
    output.sum().backward()
    for tensor in (output, query.grad, key.grad, value.grad):
        assert tensor is not None
        assert not tensor.any()


def test_rows_without_a_positive_score_give_zeros() -> None:
    scores = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [-math.inf, -2.0]], requires_grad=True)
    weights = proportional(scores)
    assert weights.tolist() == [[0, 0], [0, 0], [0, 0]]
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_a_small_sum_is_exact_and_its_gradient_large() -> None:
    scores = torch.tensor([1e-200, 3e-200], dtype=torch.float64, requires_grad=True)
    weights = proportional(scores)
    assert_close(weights.detach(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(weights[0], scores)
    assert_close(gradient, torch.tensor([0.75, -0.25], dtype=torch.float64) / 4e-200)


def test_unnormalised_is_linear_in_the_scores() -> None:
    scores = torch.randn(3, 4)
    assert_close(unnormalised(2 * scores), 2 * unnormalised(scores))


def test_only_the_eager_kernel_has_them() -> None:
    query, key, value = inputs()
    with pytest.raises(ValueError, match="use eager"):
        attend(query, key, value, normalise="none", kernel="sdpa")


def test_an_unknown_form_lists_the_known(without_shape_checks: None) -> None:
    query, key, value = inputs()
    with pytest.raises(ValueError, match="normalise: expected softmax, proportional, none"):
        attend(query, key, value, normalise="sum")  # type: ignore[arg-type]
