"""From a hash table to attention: each step by hand, and which inputs it gives a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.nn.attention import attend, dot
from qkv.nn.attention.lookup import (
    exact,
    inner_products_of_top,
    mean_of_top,
    nearest,
    softmax,
    weighted_mean_of_top,
)

T, S, D, X = 4, 6, 3, 2


@pytest.fixture
def table() -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (
        torch.randn(n, w, dtype=torch.float64) for n, w in ((T, D), (S, D), (S, X))
    )
    query[0], query[2] = key[4], key[1]
    return query, key, value


def similar(query: Tensor, key: Tensor) -> list[tuple[float, int]]:
    """(similarity, place) of every key, the most similar first."""
    return sorted(((float(query @ key[s]), s) for s in range(S)), reverse=True)


def test_exact_finds_the_equal_key_or_nothing(table: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = table
    zero = torch.zeros(X, dtype=torch.float64)
    assert_close(exact(query, key, value), torch.stack([value[4], zero, value[1], zero]))


def test_exact_takes_the_first_of_equal_keys() -> None:
    key = torch.tensor([[1.0], [2.0], [2.0]])
    assert exact(torch.tensor([[2.0]]), key, torch.tensor([[10.0], [20.0], [30.0]])).tolist() == [
        [20.0]
    ]


def test_nearest_finds_the_most_similar(table: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = table
    right = [value[similar(query[t], key)[0][1]] for t in range(T)]
    assert_close(nearest(query, key, value), torch.stack(right))


@pytest.mark.parametrize("l", [1, 3, S])
def test_mean_of_the_l_most_similar(table: tuple[Tensor, Tensor, Tensor], l: int) -> None:  # noqa: E741
    query, key, value = table
    right = [sum(value[s] for _, s in similar(query[t], key)[:l]) / l for t in range(T)]
    assert_close(mean_of_top(query, key, value, l), torch.stack(right))


@pytest.mark.parametrize("l", [1, 3, S])
def test_inner_products_are_the_weights_of_the_fourth_step(
    table: tuple[Tensor, Tensor, Tensor],
    l: int,  # noqa: E741
) -> None:
    query, key, value = table
    right = []
    for t in range(T):
        right.append(sum(score * value[s] for score, s in similar(query[t], key)[:l]) / l)
    assert_close(inner_products_of_top(query, key, value, l), torch.stack(right))


def test_inner_products_of_all_keys_are_unnormalised_attention(
    table: tuple[Tensor, Tensor, Tensor],
) -> None:
    query, key, value = table
    output, _ = attend(query, key, value, score=dot, normalise="none")
    assert_close(inner_products_of_top(query, key, value, S) * S, output)


@pytest.mark.parametrize("l", [1, 3, S])
def test_weighted_mean_of_the_l_most_similar(table: tuple[Tensor, Tensor, Tensor], l: int) -> None:  # noqa: E741
    query, key, value = table
    right = []
    for t in range(T):
        best = [(math.exp(score), s) for score, s in similar(query[t], key)[:l]]
        right.append(
            sum(weight * value[s] for weight, s in best) / sum(weight for weight, _ in best)
        )
    assert_close(weighted_mean_of_top(query, key, value, l), torch.stack(right))


def test_softmax_is_the_weighted_mean_of_all(table: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = table
    assert_close(softmax(query, key, value), weighted_mean_of_top(query, key, value, S))
    assert_close(softmax(query, key, value), torch.softmax(query @ key.T, dim=-1) @ value)


def test_each_step_is_a_case_of_the_next(table: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = table
    assert_close(mean_of_top(query, key, value, 1), nearest(query, key, value))
    assert_close(weighted_mean_of_top(query, key, value, 1), nearest(query, key, value))
    assert_close(softmax(query * 1e4, key, value), nearest(query, key, value))


STEPS = {
    "exact": exact,
    "nearest": nearest,
    "mean of top": lambda *x: mean_of_top(*x, l=2),
    "inner products of top": lambda *x: inner_products_of_top(*x, l=2),
    "weighted mean of top": lambda *x: weighted_mean_of_top(*x, l=2),
    "softmax": softmax,
}


@pytest.mark.parametrize("step", STEPS)
def test_every_step_has_a_gradient_for_the_values(
    step: str, table: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = table
    assert torch.autograd.gradcheck(
        lambda value: STEPS[step](query, key, value), value.requires_grad_()
    )


@pytest.mark.parametrize("step", ["exact", "nearest", "mean of top"])
def test_the_first_three_steps_have_none_for_queries_and_keys(
    step: str, table: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = (x.requires_grad_() for x in table)
    actual = torch.autograd.grad(
        STEPS[step](query, key, value).sum(), (query, key), allow_unused=True
    )
    assert actual == (None, None)


@pytest.mark.parametrize("step", ["inner products of top", "weighted mean of top", "softmax"])
def test_the_last_three_have_one_for_everything(
    step: str, table: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = (x.requires_grad_() for x in table)
    assert torch.autograd.gradcheck(STEPS[step], (query, key, value))


def test_only_softmax_reaches_every_key(table: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = table
    top_two = ("inner products of top", 2), ("weighted mean of top", 2)
    for step, reached in (*top_two, ("softmax", S)):
        leaf = key.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(STEPS[step](query[:1], leaf, value).sum(), leaf)
        assert int(gradient.any(-1).sum()) == reached
