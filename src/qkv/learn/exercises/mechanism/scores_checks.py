"""Checks of exercise 2: the scores equal those of `qkv.nn.attention.score`."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor
from torch.func import functional_call

from qkv.learn.expectations import (
    Failed,
    InputDraw,
    call_with,
    check,
    expect_double,
    expect_equal,
    expect_gradients,
)
from qkv.learn.result_kinds import as_number
from qkv.nn.attention.score import Additive, General, dot, scaled_dot

LEADING = {1: (), 2: (2,), 3: (2, 3), 5: (4,)}
"""The leading dimensions of inputs, by their size."""


def draw_pairs(draw: InputDraw) -> dict[str, Tensor]:
    """A query (..., T, D) and a key (..., S, D); T, S and D are all different."""
    size = draw.size
    leading = LEADING[size]
    return {
        "query": draw.normal(*leading, size + 1, size + 3),
        "key": draw.normal(*leading, size + 2, size + 3),
    }


def right_general(query: Tensor, key: Tensor, matrix: Tensor) -> Tensor:
    """q^T M k as <A q, B k>, with A the transposed matrix and B the identity."""
    width = len(matrix)
    weights = {"A.weight": matrix.mT, "B.weight": torch.eye(width, dtype=matrix.dtype)}
    return functional_call(General(width), weights, (query, key))


def right_additive(query: Tensor, key: Tensor, w_query: Tensor, w_key: Tensor, v: Tensor) -> Tensor:
    """The library's additive score with given weights."""
    weights = {"W_q.weight": w_query, "W_k.weight": w_key, "v.weight": v.unsqueeze(0)}
    return functional_call(Additive(query.shape[-1], width=len(v)), weights, (query, key))


@check("dot", "Row t, column s is <q_t, k_s>")
def dot_products(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_pairs(draw)
    right = dot(**inputs)
    expect_equal(
        call_with(mine.dot, inputs),
        right,
        "dot",
        {
            "dot: the scores are divided by sqrt(D) already: that is scaled_dot": (
                scaled_dot(**inputs)
            ),
            "dot: the vectors are divided by their lengths: that is the cosine, not <q, k>": (
                cosine(**inputs)
            ),
            "dot: a softmax makes weights out of scores; here only the scores": right.softmax(-1),
        },
        shape="(..., T, S)",
        inputs=inputs,
    )


@check("dot", "It works with gradients and in float64")
def dot_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_pairs(draw)
    expect_gradients(mine.dot, dot, inputs, "dot")
    expect_double(mine.dot, dot, inputs, "dot")


@check("score_variance", "The variance grows with the width")
def measured_variance(mine: ModuleType, draw: InputDraw) -> None:
    width = 64 * draw.size
    found = as_number(mine.score_variance(width, 2000), f"score_variance({width}, 2000)")
    said = f"score_variance({width}, 2000) is {found:.3g}"
    if found == width:
        raise Failed(f"{said} exactly: draw random vectors and measure it")
    if abs(found / width - 1) < 0.2:
        return

    reasons = {
        math.sqrt(width): "this is the standard deviation; the variance is its square",
        1.0: "is this the variance of single numbers, or of scaled scores?",
        1 / width: "these are means of D products; <q, k> is their sum",
        width
        * (1 / 9 - 1 / 16): "torch.rand draws from 0 to 1; torch.randn has mean 0, variance 1",
        width / 144: "numbers drawn evenly have another variance; torch.randn has variance 1",
        2 * width: "is each query its own key? InputDraw the keys independently of the queries",
    }
    for value, reason in reasons.items():
        if abs(found / value - 1) < 0.2:
            raise Failed(f"{said}: {reason}")

    raise Failed(
        f"{said}; expected about {width}: are a new q and a new k drawn for each pair, and is the "
        "variance taken over the pairs?"
    )


@check("score_variance", "It is measured on as many pairs as asked for")
def measured_pairs(mine: ModuleType, draw: InputDraw) -> None:
    # The variance of few scores scatters, that of many does not.
    def spread(pairs: int) -> float:
        found = []
        for _ in range(20):
            found.append(as_number(mine.score_variance(4, pairs), "score_variance"))

        return float(torch.tensor(found).std()) / 4

    few = spread(8)
    many = spread(2000)
    if few < 0.15 or many > 0.15:
        raise Failed(
            "score_variance: the variance of 8 scores should scatter much and that of 2000 little, "
            f"but 20 results scatter by {few:.2f} D and {many:.2f} D: are `pairs` pairs drawn in "
            "each call, with a new q and a new k for each pair?"
        )


@check("typical_score", "The square root of the variance")
def standard_deviation(mine: ModuleType, draw: InputDraw) -> None:
    for width in (1, draw.size + 2, 64 * draw.size):
        found = as_number(mine.typical_score(width), f"typical_score({width})")
        if abs(found - math.sqrt(width)) < 1e-4:
            continue
        if abs(found - width) < 1e-4:
            raise Failed(
                f"typical_score({width}) is {width}: this is the variance; the standard deviation "
                "is its square root"
            )
        if abs(found - 1 / math.sqrt(width)) < 1e-4:
            raise Failed(
                f"typical_score({width}) is {found:.3g}: this is the scale 1/sqrt(D), by which "
                "scores are multiplied; a typical score is sqrt(D)"
            )

        raise Failed(
            f"typical_score({width}) is {found:.3g}: compare it with the square root of "
            f"score_variance({width}, 2000)"
        )


@check("softmax_slope", "The derivative of each weight by its own score")
def slopes(mine: ModuleType, draw: InputDraw) -> None:
    scores = 2 * draw.normal(*LEADING[draw.size], draw.size + 1)
    weights = scores.softmax(-1)
    expect_equal(
        call_with(mine.softmax_slope, {"scores": scores}),
        derivative_of_softmax(scores),
        "softmax_slope",
        {
            "softmax_slope: these are the weights w; their slopes are w (1 - w)": weights,
            "softmax_slope: the scores are used for the weights: take their softmax first": (
                scores * (1 - scores)
            ),
            "softmax_slope: the sign is wrong: a weight grows with its score": (
                -derivative_of_softmax(scores)
            ),
            "softmax_slope: the softmax goes over the keys, the last dimension": (
                scores.softmax(0) * (1 - scores.softmax(0))
            ),
            "softmax_slope: this is w (1 - s) with the score s; the weight w stands twice": (
                weights * (1 - scores)
            ),
        },
        shape="(..., S)",
        inputs={"scores": scores, "weights": weights},
    )
    large = 1000 * scores
    expect_equal(
        call_with(mine.softmax_slope, {"scores": large}),
        large.softmax(-1) * (1 - large.softmax(-1)),
        "softmax_slope of large scores (exp(1000) is infinite; softmax avoids that)",
        inputs={"scores": large},
    )


@check("scaled_dot", "A typical score is 1, whatever the width is")
def scaled_dot_products(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_pairs(draw)
    query, key = inputs.values()
    T, D = query.shape[-2:]
    S = key.shape[-2]
    raw = dot(query, key)
    expect_equal(
        call_with(mine.scaled_dot, inputs),
        scaled_dot(query, key),
        "scaled_dot",
        {
            "scaled_dot: the scores are not divided by sqrt(D)": raw,
            "scaled_dot: the scores are divided by D, not by sqrt(D); is sqrt(D) taken out of both "
            "query and key?": raw / D,
            "scaled_dot: the scores are multiplied by sqrt(D), not divided": raw * math.sqrt(D),
            "scaled_dot: the scores are divided by sqrt(S), the number of keys; D is the width": (
                raw / math.sqrt(S)
            ),
            "scaled_dot: the scores are divided by sqrt(T), the number of queries; D is a width": (
                raw / math.sqrt(T)
            ),
            "scaled_dot: the vectors are divided by their lengths: that is the cosine": (
                cosine(query, key)
            ),
        },
        shape="(..., T, S)",
        inputs=inputs,
    )


@check("scaled_dot", "It works with gradients and in float64")
def scaled_dot_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_pairs(draw)
    expect_gradients(mine.scaled_dot, scaled_dot, inputs, "scaled_dot")
    expect_double(mine.scaled_dot, scaled_dot, inputs, "scaled_dot")


@check("general", "q^T M k")
def general_products(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_pairs(draw)
    width = inputs["query"].shape[-1]
    inputs["matrix"] = draw.normal(width, width)
    query, key, matrix = inputs.values()
    right = right_general(query, key, matrix)
    expect_equal(
        call_with(mine.general, inputs),
        right,
        "general",
        {
            "general: this is k^T M q; the query stands on the left of M": (
                right_general(query, key, matrix.T)
            ),
            "general: the matrix is not used": dot(query, key),
            "general: query and key are both multiplied by M; once is enough": (
                dot(query @ matrix.T, key @ matrix.T)
            ),
            "general: query and key are both multiplied by M^T; once is enough": (
                dot(query @ matrix, key @ matrix)
            ),
            "general: the scores are divided by sqrt(D); the learned M can do that itself": (
                right / math.sqrt(width)
            ),
        },
        shape="(..., T, S)",
        inputs=inputs,
    )
    expect_gradients(mine.general, right_general, inputs, "general")
    expect_double(mine.general, right_general, inputs, "general")


def draw_additive(draw: InputDraw) -> dict[str, Tensor]:
    """Queries and keys with the weights of a hidden layer, which is wider than they are."""
    inputs = draw_pairs(draw)
    width = inputs["query"].shape[-1]
    inputs["w_query"] = draw.normal(width + 1, width)
    inputs["w_key"] = draw.normal(width + 1, width)
    inputs["v"] = draw.normal(width + 1)
    return inputs


@check("additive", "v . tanh(W_q q + W_k k)")
def additive_scores(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_additive(draw)
    query, key, w_query, w_key, v = inputs.values()
    projected_query = (query @ w_query.T).unsqueeze(-2)
    projected_key = (key @ w_key.T).unsqueeze(-3)
    both = projected_query + projected_key
    expect_equal(
        call_with(mine.additive, inputs),
        right_additive(query, key, w_query, w_key, v),
        "additive",
        {
            "additive: the tanh is missing": both @ v,
            "additive: the tanh is taken of W_q q and of W_k k; it is taken of their sum": (
                (projected_query.tanh() + projected_key.tanh()) @ v
            ),
            "additive: v is not used: the hidden numbers are summed without weights": (
                both.tanh().sum(-1)
            ),
            "additive: the tanh is taken of the score; it belongs to the hidden layer": (
                (both @ v).tanh()
            ),
            "additive: W_q q and W_k k are multiplied, not added": (
                (projected_query * projected_key).tanh() @ v
            ),
            "additive: W_q belongs to the query and W_k to the key: they are swapped": (
                right_additive(query, key, w_key, w_query, v)
            ),
            "additive: W_q is used for the key, too; the key is multiplied by W_k": (
                right_additive(query, key, w_query, w_query, v)
            ),
            "additive: W_q q and W_k k are subtracted, not added": (
                right_additive(query, key, w_query, -w_key, v)
            ),
            "additive: the hidden layer has a ReLU; Bahdanau's has tanh": both.relu() @ v,
            "additive: the hidden layer has a sigmoid; Bahdanau's has tanh": both.sigmoid() @ v,
        },
        shape="(..., T, S)",
        inputs={"query": query, "key": key},
    )


@check("additive", "It works with gradients and in float64")
def additive_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_additive(draw)
    expect_gradients(mine.additive, right_additive, inputs, "additive")
    expect_double(mine.additive, right_additive, inputs, "additive")


def cosine(query: Tensor, key: Tensor) -> Tensor:
    """The dot product of vectors of length 1."""
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).unsqueeze(-2)
    return dot(query, key) / lengths


def derivative_of_softmax(scores: Tensor) -> Tensor:
    """The derivative of each weight by its own score, by automatic differentiation."""
    slopes = []
    for row in scores.reshape(-1, scores.shape[-1]):
        jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row)
        slopes.append(jacobian.diagonal())

    return torch.stack(slopes).view(scores.shape)
