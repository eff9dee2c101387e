"""Exercises 1 to 4: right solutions that are written another way pass, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qkv.learn.expectations import (
    Failed,
    call_with,
    compare,
    expect_double,
    expect_dtype,
    expect_gradients,
    expect_pair,
)
from qkv.learn.result_kinds import as_number
from support.student_files import report_with

MASKED_SOFTMAX = """    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return weights.masked_fill(~mask, 0)"""
BY_HAND = """    scores = scores.masked_fill(~mask, -math.inf)
    most = scores.detach().amax(-1, keepdim=True)
    parts = (scores - most.masked_fill(most.isinf(), 0)).exp()
    return parts / parts.sum(-1, keepdim=True).clamp(min=1e-9)"""
EMPTY_ROWS = """    empty = ~mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0)
    return scores.softmax(-1) * ~empty"""
ALLCLOSE = "torch.allclose(layer(x[order]), layer(x)[order], atol=1e-5)"

OTHER_WAYS = [
    ("lookup", "(keys @ query).topk(l).indices", "(keys @ query).argsort(descending=True)[:l]"),
    ("lookup", "(scores.unsqueeze(1) * values[indices]).mean(0)", "scores @ values[indices] / l"),
    (
        "scores",
        "query @ key.transpose(-2, -1)\n",
        "torch.einsum('...td,...sd->...ts', query, key)\n",
    ),
    ("scores", "    scores = (query * key).sum(-1)\n", "    scores = query @ key.T\n"),
    ("scores", "typical_score(query.shape[-1])", "torch.sqrt(torch.tensor(query.shape[-1]))"),
    ("self_attention", ALLCLOSE, "(layer(x[order]) - layer(x)[order]).abs().max() < 1e-4"),
    ("self_attention", ALLCLOSE, "torch.allclose(layer(x[order])[order.argsort()], layer(x))"),
    ("masks", "torch.ones(T, T, dtype=torch.bool).tril()", "torch.tril(torch.ones(T, T)) == 1"),
    ("masks", "weights.masked_fill(~mask, 0)", "weights.nan_to_num(0)"),
    ("masks", MASKED_SOFTMAX, BY_HAND),
    ("masks", MASKED_SOFTMAX, EMPTY_ROWS),
]


@pytest.mark.parametrize(("name", "old", "new"), OTHER_WAYS)
def test_another_way_to_the_same_result_passes(
    name: str, old: str, new: str, tmp_path: Path
) -> None:
    report = report_with(tmp_path, name, old, new)
    assert report.state == "passed", [one for one in report.results if one.state != "passed"]


def test_a_changed_input_is_named() -> None:
    def halve(x):
        x /= 2
        return x

    x = torch.ones(2)
    with pytest.raises(Failed, match="halve changes x in place"):
        call_with(halve, {"x": x})

    assert x.tolist() == [1, 1]


def test_an_error_names_the_shapes_of_the_inputs() -> None:
    inputs = {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}
    with pytest.raises(RuntimeError, match=r"the inputs are a \(2, 3\), b \(2, 3\)"):
        call_with(torch.matmul, inputs)


def test_a_hole_stays_a_hole() -> None:
    def hole(x):
        raise NotImplementedError

    with pytest.raises(NotImplementedError) as raised:
        call_with(hole, {"x": torch.ones(1)})

    assert raised.value.args == ()


def test_results_of_the_wrong_kind_are_named() -> None:
    with pytest.raises(Failed, match="return output, weights"):
        expect_pair(torch.ones(2, 2), "attend", "output", "weights")
    with pytest.raises(Failed, match="return statement"):
        as_number(None, "the variance")
    with pytest.raises(Failed, match=r"shape \(2,\)"):
        as_number(torch.ones(2), "the variance")
    with pytest.raises(Failed, match="int64; expected bool"):
        expect_dtype(torch.ones(2, dtype=torch.int64), torch.bool, "the mask")
    with pytest.raises(Failed, match="float32; expected float64"):
        expect_double(lambda x: x.float(), lambda x: x, {"x": torch.ones(2)}, "the copy")

    assert as_number(torch.tensor([2.0]), "the variance") == 2
    assert expect_pair((1, 2), "attend", "output", "weights") == (1, 2)


def test_the_table_shows_the_matrix_that_differs() -> None:
    right = torch.zeros(2, 3, 1, 2)
    found = right.clone()
    found[1, 2, 0, 1] = 5
    example = compare("the weights", found, right, 1e-5)
    assert example.title == "the weights (2, 3, 1, 2), of which [1, 2]"
    assert example.rows == (("0", "0", "5, not 0"),)


def test_a_wrong_gradient_does_not_say_that_wrong_values_are_right() -> None:
    inputs = {"x": torch.ones(2)}
    with pytest.raises(Failed, match="values are wrong, and so is the gradient of x"):
        expect_gradients(lambda x: 2 * x, lambda x: x, inputs, "the copy")
    with pytest.raises(Failed, match="values are right, but the gradient of x"):
        expect_gradients(lambda x: 2 * x - x.detach(), lambda x: x, inputs, "the copy")
