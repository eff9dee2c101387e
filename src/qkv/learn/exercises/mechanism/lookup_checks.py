"""Checks of exercise 1: the lookups equal those of `qkv.nn.attention.lookup`."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from qkv.learn.expectations import Draw, Failed, check, expect_equal, expect_gradients, table
from qkv.nn.attention import lookup


def draw_table(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """A query (D,), keys (S, D) and values (S, X)."""
    size = draw.size
    return draw.normal(size + 1), draw.normal(size + 2, size + 1), draw.normal(size + 2, 2)


@check("exact", "The value of the key that equals the query")
def equal_key(mine: ModuleType, draw: Draw) -> None:
    _, keys, values = draw_table(draw)
    for number, key in enumerate(keys):
        found = mine.exact(key.clone(), keys, values)
        expect_equal(
            found, values[number], f"exact, with the query equal to key {number}", shape="(X,)"
        )


@check("exact", "Zeros if no key equals the query")
def no_equal_key(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    keys = torch.cat([keys, 2 * query.unsqueeze(0)])
    values = torch.cat([values, values[:1] + 1])
    expect_equal(
        mine.exact(query, keys, values),
        torch.zeros(values.shape[1]),
        "exact, without an equal key: the result should be zeros",
        inputs={"query": query, "keys": keys},
    )
    # A key with the same inner product, <q, k> = <q, q>, that is not equal
    other = query + torch.tensor([-query[1], query[0], *[0.0] * (len(query) - 2)])
    expect_equal(
        mine.exact(query, other.unsqueeze(0), values[:1] + 1),
        torch.zeros(values.shape[1]),
        "exact: this key is not equal to the query in every number, only <q, k> = <q, q> is",
        inputs={"query": query, "key": other},
    )


@check("nearest", "The value of the most similar key")
def most_similar(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    scores = keys @ query
    expect_equal(
        mine.nearest(query, keys, values),
        lookup.nearest(query.unsqueeze(0), keys, values)[0],
        "nearest",
        {
            "nearest: this is the least similar key": values[scores.argmin()],
            "nearest: this key has the smallest distance; the similarity is the inner product": (
                values[(keys - query).norm(dim=1).argmin()]
            ),
        },
        shape="(X,)",
        inputs={"scores <q, k_i>": scores, "values": values},
    )


@check("top", "The mean of the l most similar")
def mean_of_top(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    for l in range(1, len(keys) + 1):  # noqa: E741
        right = lookup.mean_of_top(query.unsqueeze(0), keys, values, l)[0]
        expect_equal(
            mine.top(query, keys, values, l),
            right,
            f"top, l = {l}",
            {f"top: a sum of {l} values, not their mean: the factor 1/l is missing": l * right},
            shape="(X,)",
            inputs={"scores <q, k_i>": keys @ query, "values": values},
        )


@check("weighted", "The l most similar, each times its similarity")
def inner_products(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    for l in range(1, len(keys) + 1):  # noqa: E741
        row = query.unsqueeze(0)
        right = lookup.inner_products_of_top(row, keys, values, l)[0]
        expect_equal(
            mine.weighted(query, keys, values, l),
            right,
            f"weighted, l = {l}",
            {
                "weighted: the factor 1/l is missing": l * right,
                "weighted: a softmax makes weights that sum to 1; here the weight is <q, k_i>": (
                    lookup.weighted_mean_of_top(row, keys, values, l)[0]
                ),
                "weighted: these are the values of top, without their weights": (
                    lookup.mean_of_top(row, keys, values, l)[0]
                ),
            },
            shape="(X,)",
            inputs={"scores <q, k_i>": keys @ query, "values": values},
        )


@check("softmax", "All values, weighted by the softmax of the similarities")
def softmax_of_all(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    scores = keys @ query
    expect_equal(
        mine.softmax(query, keys, values),
        lookup.softmax(query.unsqueeze(0), keys, values)[0],
        "softmax",
        {
            "softmax: the scores are divided by their sum; exp(<q, k_i>) is missing": (
                (scores / scores.sum()) @ values
            ),
            "softmax: the scores are divided by sqrt(D); that comes in the next exercise": (
                (scores / len(query) ** 0.5).softmax(0) @ values
            ),
            "softmax: the weights are not divided by their sum": scores.exp() @ values,
        },
        shape="(X,)",
        inputs={"scores <q, k_i>": scores, "values": values},
    )


@check("softmax", "It has a gradient for query, keys and values")
def softmax_gradients(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    expect_gradients(
        mine.softmax,
        lambda q, k, v: lookup.softmax(q.unsqueeze(0), k, v)[0],
        {"query": query, "keys": keys, "values": values},
        "softmax",
    )


@check("learns", "Which lookups can be learned")
def which_learn(mine: ModuleType, draw: Draw) -> None:
    query, keys, values = draw_table(draw)
    for name in ("exact", "nearest", "top", "weighted", "softmax"):
        expected = name in ("weighted", "softmax")
        if mine.learns(name) != expected:
            moved = [f"{name}(q) and {name}(q + 0.001) are equal", f"{name}(q + 0.001) differs"]
            raise Failed(
                f"learns({name!r}) is {mine.learns(name)}; move the query a little: "
                f"{moved[expected]} (almost everywhere)",
                table("scores <q, k_i>", keys @ query),
                table("values", values),
            )
