"""Results that are no tensors: what a student is told of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.learn.expectations import Failed
from qkv.learn.result_kinds import (
    expect_ids,
    expect_number,
    expect_results,
)


@pytest.mark.parametrize("right", [2, 2.0, torch.tensor(2.0), torch.tensor([2])])
def test_a_number_may_be_a_tensor_with_one_number(right: Any) -> None:
    expect_number(right, 2.0, "the loss")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "return statement"),
        (True, "expected a number"),
        (torch.zeros(2), r"shape \(2,\)"),
        (3.0, "is 3; expected 2"),
        (4.0, "twice"),
        (float("nan"), "is nan; expected 2"),
    ],
)
def test_a_wrong_number_is_named(found: Any, says: str) -> None:
    with pytest.raises(Failed, match=says):
        expect_number(found, 2.0, "the loss", {"the loss is twice as large": 4.0})


def test_a_mistake_that_gives_the_right_number_is_not_named() -> None:
    with pytest.raises(Failed, match="is 3; expected 2"):
        expect_number(3.0, 2.0, "the loss", {"a mistake that changes nothing here": 2.0})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "return statement"),
        (torch.tensor([1, 2]), "expected a list of token ids"),
        ([torch.tensor(1), 2], "whole numbers"),
        ([1], "not the expected ones"),
        ([0, 1, 2], "prompt"),
    ],
)
def test_wrong_ids_are_named(found: Any, says: str) -> None:
    with pytest.raises(Failed, match=says):
        expect_ids(found, [1, 2], "generate", {"generate: without the prompt": [0, 1, 2]})


def test_right_ids_pass() -> None:
    expect_ids([1, 2], (1, 2), "generate")


@pytest.mark.parametrize("found", [None, [1, 2], (1, 2, 3), torch.zeros(2)])
def test_two_results_are_a_tuple_of_two(found: Any) -> None:
    with pytest.raises(Failed):
        expect_results(found, ("gradients", "norm"))
    assert expect_results((1, 2), ("gradients", "norm")) == (1, 2)
