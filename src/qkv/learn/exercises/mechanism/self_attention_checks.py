"""Checks of exercise 3: attention equals `qkv.nn.attention.attend`, and treats x as a set."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.learn.exercises.mechanism.scores_checks import LEADING
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    call_with,
    check,
    expect_double,
    expect_equal,
    expect_gradients,
    expect_pair,
    table,
)
from qkv.nn.attention import attend
from qkv.nn.attention.score import dot


def draw_attention(draw: InputDraw) -> dict[str, Tensor]:
    """Queries, keys and values; T, S, D and X are all different."""
    size = draw.size
    leading = LEADING[size]
    return {
        "query": draw.normal(*leading, size + 1, size + 3),
        "key": draw.normal(*leading, size + 2, size + 3),
        "value": draw.normal(*leading, size + 2, size + 4),
    }


def right_attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The library's output and weights."""
    output, weights = attend(query, key, value, need_weights=True)
    assert weights is not None
    return output, weights


def right_set_attention(x: Tensor) -> Tensor:
    """softmax(X X^T) X by the library."""
    return attend(x, x, x, score=dot)[0]


def right_self_attention(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    """The library's attention of projected vectors."""
    return attend(x @ w_query.T, x @ w_key.T, x @ w_value.T)[0]


@check("mixed", "X X^T X: sums of rows, weighted by dot products")
def sums_of_rows(mine: ModuleType, draw: InputDraw) -> None:
    inputs = {"x": draw.normal(draw.size + 1, draw.size + 2)}
    x = inputs["x"]
    expect_equal(
        call_with(mine.mixed, inputs),
        x @ x.T @ x,
        "mixed",
        {
            "mixed: a softmax makes the weights sum to 1; that is set_attention": (
                right_set_attention(x)
            ),
            "mixed: the dot products are divided by sqrt(E); here they are used as they are": (
                x @ x.T @ x / math.sqrt(x.shape[-1])
            ),
            "mixed: the sum is divided by T, as a mean; here it is a sum": x @ x.T @ x / len(x),
        },
        shape="(T, E)",
        inputs={"x": x, "X X^T": x @ x.T},
    )
    expect_gradients(mine.mixed, lambda y: y @ y.T @ y, inputs, "mixed")


@check("set_attention", "softmax(X X^T) X: each row is a weighted mean of all rows")
def means_of_rows(mine: ModuleType, draw: InputDraw) -> None:
    inputs = {"x": draw.normal(draw.size + 1, draw.size + 2)}
    x = inputs["x"]
    scores = x @ x.T
    columns = scores.softmax(0)
    expect_equal(
        call_with(mine.set_attention, inputs),
        right_set_attention(x),
        "set_attention",
        {
            f"rows of the weights sum to {columns[0].sum():.3g}, not 1: is the softmax over keys? "
            "Row i of X X^T belongs to query i, so it is the last dimension": columns @ x,
            "set_attention: this is X X^T X; the softmax is missing": scores @ x,
            "set_attention: the scores are divided by sqrt(E); the scale comes in attend": (
                (scores / math.sqrt(x.shape[-1])).softmax(-1) @ x
            ),
            "set_attention: the softmax is taken of the output; it belongs to X X^T": (
                (scores @ x).softmax(-1)
            ),
            "set_attention: the scores are divided by their sum; exp is missing": (
                scores / scores.sum(-1, keepdim=True) @ x
            ),
            "set_attention: the weights are not divided by their sum": scores.exp() @ x,
            "set_attention: all weights together sum to 1; those of each row must": (
                scores.flatten().softmax(0).view(scores.shape) @ x
            ),
            "set_attention: x is added to the result; the residual comes in exercise 7": (
                x + right_set_attention(x)
            ),
        },
        shape="(T, E)",
        inputs={"x": x, "X X^T": scores},
    )
    expect_equal(
        mine.set_attention(100 * x),
        right_set_attention(100 * x),
        "set_attention of large vectors (exp(1000) is infinite; torch's softmax avoids that)",
        inputs={"x": 100 * x},
    )
    expect_gradients(mine.set_attention, right_set_attention, inputs, "set_attention")
    expect_double(mine.set_attention, right_set_attention, inputs, "set_attention")


@check("attend", "The weights are softmax(Q K^T / sqrt(D))")
def attention_weights(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)
    query, key, value = inputs.values()
    output, weights = expect_pair(call_with(mine.attend, inputs), "attend", "output", "weights")
    D = query.shape[-1]
    raw = dot(query, key)
    if isinstance(output, Tensor) and output.shape == raw.shape:
        raise Failed("attend returns the weights first; expected the output, then the weights")

    scaled = raw / math.sqrt(D)
    queries = scaled.softmax(-2)
    sums = queries.sum(-1).flatten()
    expect_equal(
        weights,
        right_attend(query, key, value)[1],
        "the weights",
        {
            f"rows of the weights sum to {sums[0]:.3g}, not 1: is the softmax over keys? This one "
            "is over queries; the keys are the last dimension": queries,
            "attend: the scores are not divided by sqrt(D)": raw.softmax(-1),
            "attend: the scores are divided by D, not by sqrt(D)": (raw / D).softmax(-1),
            "attend: the scores are multiplied by sqrt(D), not divided": (
                (raw * math.sqrt(D)).softmax(-1)
            ),
            "attend: the scores are divided by the square root of the number of keys; D is the "
            "width of a query": (raw / math.sqrt(key.shape[-2])).softmax(-1),
            "attend: the scores are divided by the square root of the number of queries; D is the "
            "width of a query": (raw / math.sqrt(query.shape[-2])).softmax(-1),
            "attend: the scores are divided by the square root of the width of the values; D is "
            "the width of queries and keys": (raw / math.sqrt(value.shape[-1])).softmax(-1),
            "attend: the weights are divided by sqrt(D) after the softmax; scale the scores": (
                raw.softmax(-1) / math.sqrt(D)
            ),
            "attend: these are the scores; the softmax is missing": scaled,
        },
        shape="(..., T, S)",
        inputs={"scores Q K^T": raw},
    )


@check("attend", "The output is the values, weighted")
def attention_output(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)
    query, key, value = inputs.values()
    output, _ = expect_pair(call_with(mine.attend, inputs), "attend", "output", "weights")
    right = attend(query, key, value)[0]
    expect_equal(
        output,
        right,
        "the output",
        {
            "attend: this is the mean of all values; each has its weight": (
                value.mean(-2, keepdim=True).expand(right.shape)
            ),
        },
        shape="(..., T, X)",
        inputs={"weights": right_attend(query, key, value)[1], "value": value},
    )


@check("attend", "Large scores do not overflow")
def large_scores(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)
    inputs["query"] = 1000 * inputs["query"]
    query, key, value = inputs.values()
    _, weights = expect_pair(call_with(mine.attend, inputs), "attend", "output", "weights")
    expect_equal(
        weights,
        right_attend(query, key, value)[1],
        "the weights of large scores (exp(1000) is infinite; torch's softmax avoids that)",
        inputs={"scores Q K^T": dot(query, key)},
    )


@check("attend", "Output and weights work with gradients and in float64")
def attend_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)

    for number, name in enumerate(("output", "weights")):
        found = result_of(mine.attend, number)
        right = result_of(right_attend, number)
        expect_gradients(found, right, inputs, f"the {name} of attend")
        expect_double(found, right, inputs, f"the {name} of attend")


def result_of(function: Callable[..., Any], number: int) -> Callable[..., Tensor]:
    """A function that returns one of the results of another: 0 is the output, 1 the weights."""

    def attend(*tensors: Tensor) -> Tensor:
        results: tuple[Tensor, Tensor] = function(*tensors)
        return results[number]

    return attend


@check("self_attention", "Queries, keys and values come from x")
def projected_attention(mine: ModuleType, draw: InputDraw) -> None:
    size = draw.size
    inputs = {
        "x": draw.normal(size + 1, size + 2),
        "w_query": draw.normal(size + 3, size + 2),
        "w_key": draw.normal(size + 3, size + 2),
        "w_value": draw.normal(size, size + 2),
    }
    x, w_query, w_key, w_value = inputs.values()
    value = x @ w_value.T
    scores = (x @ w_query.T) @ (x @ w_key.T).T
    E = x.shape[-1]
    expect_equal(
        call_with(mine.self_attention, inputs),
        right_self_attention(x, w_query, w_key, w_value),
        "self_attention",
        {
            "self_attention: W_q makes queries and W_k makes keys: they are swapped": (
                right_self_attention(x, w_key, w_query, w_value)
            ),
            "self_attention: the keys are made by W_q; they are W_k x": (
                right_self_attention(x, w_query, w_query, w_value)
            ),
            "self_attention: the queries are made by W_k; they are W_q x": (
                right_self_attention(x, w_key, w_key, w_value)
            ),
            "self_attention: the scores are divided by sqrt(E); D is the width of a query": (
                (scores / math.sqrt(E)).softmax(-1) @ value
            ),
            "self_attention: the scores are not divided by sqrt(D)": scores.softmax(-1) @ value,
            "self_attention: the values themselves; nothing attends": value,
        },
        shape="(T, X)",
        inputs={"x": x},
    )
    expect_gradients(mine.self_attention, right_self_attention, inputs, "self_attention")


Layer = Callable[[Tensor], Tensor]


def sets_and_sequences(T: int) -> dict[str, tuple[Layer, bool]]:
    """Layers with names, and whether they treat their input as a set."""
    positions = torch.arange(T).unsqueeze(-1)
    return {
        "softmax(X X^T) X": (right_set_attention, True),
        "a layer that doubles each row": (lambda x: 2 * x, True),
        "a layer that gives each row the sum of all rows": (
            lambda x: x.cumsum(0)[-1].expand_as(x),
            True,
        ),
        "a layer that adds the position to each row": (lambda x: x + positions, False),
        "a layer that adds 0.001 times the position": (lambda x: x + 0.001 * positions, False),
        "a layer in which each row sees only earlier ones": (lambda x: x.cumsum(0), False),
        "a layer that reverses the rows": (lambda x: x.flip(0), False),
        "a layer that returns the same rows for any input": (
            lambda x: positions.to(x) * torch.ones_like(x),
            False,
        ),
    }


@check("shuffled_alike", "A layer for sets is told from one for sequences")
def shuffled(mine: ModuleType, draw: InputDraw) -> None:
    for T in (draw.size + 2, 64):
        x = draw.normal(T, 3)
        order = torch.arange(T).roll(1)
        for name, (layer, expected) in sets_and_sequences(T).items():
            say_alike(mine, name, layer, {"x": x, "order": order}, expected)


@check("shuffled_alike", "All rows are compared")
def each_row(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 2
    x = draw.normal(T, 2)
    positions = torch.arange(T).unsqueeze(-1)
    for row in range(T - 1):
        order = torch.arange(T)
        order[row], order[row + 1] = row + 1, row
        name = f"a layer that adds the position, with only rows {row} and {row + 1} swapped"
        say_alike(mine, name, lambda y: y + positions, {"x": x, "order": order}, False)


@check("shuffled_alike", "The order that is given is the one that is used")
def given_order(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 2
    x = draw.normal(T, 2)
    order = torch.tensor([1, 0, *range(2, T)])
    place = torch.arange(T).unsqueeze(-1)
    place[1] = 0
    name = "a layer that treats only rows 0 and 1 alike"
    say_alike(mine, name, lambda y: y + place, {"x": x, "order": order}, True)
    say_alike(mine, name, lambda y: y + place, {"x": x, "order": order.roll(1)}, False)


def say_alike(
    mine: ModuleType, name: str, layer: Layer, inputs: dict[str, Tensor], expected: bool
) -> None:
    """Fail unless the student's function gives the expected answer for a layer."""

    def shuffled_alike(x: Tensor, order: Tensor) -> Any:
        return mine.shuffled_alike(layer, x, order)

    found = call_with(shuffled_alike, inputs)
    if found is None:
        raise Failed("shuffled_alike returns None; is a return statement missing?")
    if isinstance(found, Tensor) and found.numel() > 1:
        raise Failed(
            f"shuffled_alike returns a tensor of shape {tuple(found.shape)}; expected True or False"
        )
    if bool(found) == expected:
        return

    x, order = inputs.values()
    shuffled_in = layer(x[order])
    shuffled_out = layer(x)[order]
    reason = "the output for x[order] is not the output for x in that order"
    if expected:
        reason = "the output for x[order] is the output for x in that order, up to rounding"

    examples = (table("layer(x[order])", shuffled_in), table("layer(x)[order]", shuffled_out))
    raise Failed(
        f"shuffled_alike is {bool(found)} for {name}, order {order.tolist()[:8]}: {reason}",
        *examples,
    )
