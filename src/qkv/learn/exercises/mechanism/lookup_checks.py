"""Checks of exercise 1: the lookups equal those of `qkv.nn.attention.lookup`."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from qkv.learn.expectations import (
    Failed,
    InputDraw,
    call_with,
    check,
    expect_equal,
    expect_gradients,
    table,
)
from qkv.nn.attention import lookup


def draw_table(draw: InputDraw) -> tuple[Tensor, Tensor, Tensor]:
    """A query (D,), keys (S, D) and values (S, X)."""
    size = draw.size
    return draw.normal(size + 1), draw.normal(size + 2, size + 1), draw.normal(size + 2, size)


@check("exact", "The value of the key that equals the query")
def equal_key(mine: ModuleType, draw: InputDraw) -> None:
    _, keys, values = draw_table(draw)
    for number, key in enumerate(keys):
        inputs = {"query": key.clone(), "keys": keys, "values": values}
        expect_equal(
            call_with(mine.exact, inputs),
            values[number],
            f"exact, with the query equal to key {number}",
            {
                "exact: zeros, although one key equals the query in every number": (
                    torch.zeros(values.shape[1])
                ),
            },
            shape="(X,)",
            inputs={"query": key, "keys": keys, "values": values},
        )


@check("exact", "Zeros if no key equals the query")
def no_equal_key(mine: ModuleType, draw: InputDraw) -> None:
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
    query = query[:2]
    other = query + torch.stack([-query[1], query[0]])
    expect_equal(
        mine.exact(query, other.unsqueeze(0), values[:1] + 1),
        torch.zeros(values.shape[1]),
        "exact: this key is not equal to the query in every number, only <q, k> = <q, q> is",
        inputs={"query": query, "key": other},
    )


@check("exact", "A key that is almost equal is not found")
def almost_equal_key(mine: ModuleType, draw: InputDraw) -> None:
    query, _, values = draw_table(draw)
    zeros = torch.zeros(values.shape[1])
    one_equal = query + 1
    one_equal[0] = query[0]
    reasons = {
        "only the first number is equal; all must be": one_equal,
        "it differs from the query by a millionth; a hash table finds only an equal key": (
            query * (1 + 1e-6)
        ),
        "it has the same numbers in another order": query.roll(1),
        "it has the same numbers with other signs": -query,
    }
    for reason, key in reasons.items():
        expect_equal(
            mine.exact(query, key.unsqueeze(0), values[:1] + 1),
            zeros,
            f"exact: this key is not the query: {reason}",
            inputs={"query": query, "key": key},
        )


@check("nearest", "The value of the most similar key")
def most_similar(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table_for_nearest(draw)
    scores = keys @ query
    expect_equal(
        call_with(mine.nearest, {"query": query, "keys": keys, "values": values}),
        lookup.nearest(query.unsqueeze(0), keys, values)[0],
        "nearest",
        {
            "nearest: this is the least similar key": values[scores.argmin()],
            "nearest: this key has the smallest distance; the similarity is the inner product": (
                values[(keys - query).norm(dim=1).argmin()]
            ),
            "nearest: this key has the largest cosine; here <q, k> is not divided by lengths": (
                values[(scores / keys.norm(dim=1)).argmax()]
            ),
        },
        shape="(X,)",
        inputs={"scores <q, k_i>": scores, "values": values},
    )

    # The key with the largest <q, k> turned round: its <q, k> is now the smallest.
    keys[scores.argmax()] *= -1
    expect_equal(
        call_with(mine.nearest, {"query": query, "keys": keys, "values": values}),
        lookup.nearest(query.unsqueeze(0), keys, values)[0],
        "nearest, with a negative <q, k>",
        {
            "nearest: this key has the largest |<q, k>|; a negative <q, k> is not similar": (
                values[(keys @ query).abs().argmax()]
            ),
        },
        inputs={"scores <q, k_i>": keys @ query, "values": values},
    )


def draw_table_for_nearest(draw: InputDraw) -> tuple[Tensor, Tensor, Tensor]:
    """A table with <q, k> > 0, in which other similarities find other keys."""
    width = draw.size + 1
    for _ in range(1000):
        query = draw.normal(width)
        keys = draw.normal(draw.size + 4, width)
        keys = keys * (keys @ query).sign().unsqueeze(1)
        scores = keys @ query
        found = {
            int(scores.argmax()),
            int(scores.argmin()),
            int((keys - query).norm(dim=1).argmin()),
            int((scores / keys.norm(dim=1)).argmax()),
        }
        if len(found) == 4:
            break

    return query, keys, draw.normal(draw.size + 4, draw.size)


@check("top", "The mean of the l most similar")
def mean_of_top(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    for l in range(len(keys), 0, -1):  # noqa: E741
        right = lookup.mean_of_top(query.unsqueeze(0), keys, values, l)[0]
        expect_equal(
            call_with(mine.top, {"query": query, "keys": keys, "values": values, "l": l}),
            right,
            f"top, l = {l}",
            {
                f"top: a sum of {l} values, not their mean: the factor 1/l is missing": l * right,
                f"top: these are the first {l} values, not those of the most similar keys": (
                    values[:l].mean(0)
                ),
                f"top: these are the {l} least similar keys": (
                    values[(keys @ query).topk(l, largest=False).indices].mean(0)
                ),
                "top: these are the largest |<q, k>|; a negative <q, k> is not similar": (
                    values[(keys @ query).abs().topk(l).indices].mean(0)
                ),
                "top: the sum is divided by the number of keys, not by l": l * right / len(keys),
            },
            shape="(X,)",
            inputs={"scores <q, k_i>": keys @ query, "values": values},
        )


@check("weighted", "The l most similar, each times its similarity")
def inner_products(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    for l in range(len(keys), 0, -1):  # noqa: E741
        row = query.unsqueeze(0)
        right = lookup.inner_products_of_top(row, keys, values, l)[0]
        expect_equal(
            call_with(mine.weighted, {"query": query, "keys": keys, "values": values, "l": l}),
            right,
            f"weighted, l = {l}",
            {
                "weighted: the factor 1/l is missing": l * right,
                "weighted: a softmax makes weights that sum to 1; here the weight is <q, k_i>": (
                    lookup.weighted_mean_of_top(row, keys, values, l)[0]
                ),
                "weighted: the weights are divided by their sum; here 1/l is the only factor": (
                    lookup.inner_products_of_top(row, keys, values, l)[0]
                    * (l / (keys @ query).topk(l).values.sum())
                ),
                "weighted: these are the values of top, without their weights": (
                    lookup.mean_of_top(row, keys, values, l)[0]
                ),
            },
            shape="(X,)",
            inputs={"scores <q, k_i>": keys @ query, "values": values},
        )


@check("weighted", "It has a gradient for query, keys and values")
def weighted_gradients(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    expect_gradients(
        lambda q, k, v: mine.weighted(q, k, v, 2),
        lambda q, k, v: lookup.inner_products_of_top(q.unsqueeze(0), k, v, 2)[0],
        {"query": query, "keys": keys, "values": values},
        "weighted",
    )


@check("softmax", "All values, weighted by the softmax of the similarities")
def softmax_of_all(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    scores = keys @ query
    expect_equal(
        call_with(mine.softmax, {"query": query, "keys": keys, "values": values}),
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
            "softmax: the result is divided by the number of keys; the weights sum to 1 already": (
                scores.softmax(0) @ values / len(keys)
            ),
        },
        shape="(X,)",
        inputs={"scores <q, k_i>": scores, "values": values},
    )


@check("softmax", "Large similarities do not overflow")
def large_similarities(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    query = 1000 * query
    expect_equal(
        mine.softmax(query, keys, values),
        lookup.softmax(query.unsqueeze(0), keys, values)[0],
        "softmax of large similarities (exp(1000) is infinite; torch's softmax avoids that)",
        inputs={"scores <q, k_i>": keys @ query},
    )


@check("softmax", "It has a gradient for query, keys and values")
def softmax_gradients(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    expect_gradients(
        mine.softmax,
        lambda q, k, v: lookup.softmax(q.unsqueeze(0), k, v)[0],
        {"query": query, "keys": keys, "values": values},
        "softmax",
    )


@check("learns", "Which lookups can be learned")
def which_learn(mine: ModuleType, draw: InputDraw) -> None:
    query, keys, values = draw_table(draw)
    for name in ("exact", "nearest", "top", "weighted", "softmax"):
        expected = name in ("weighted", "softmax")
        found = mine.learns(name)
        if not isinstance(found, bool):
            raise Failed(f"learns({name!r}) is {found!r}; expected True or False")
        if found != expected:
            moved = f"{name}(q) and {name}(q + 0.001) are equal almost everywhere"
            if expected:
                moved = f"{name}(q + 0.001) is a little different from {name}(q)"

            raise Failed(
                f"learns({name!r}) is {found}; move the query a little: {moved}",
                table("scores <q, k_i>", keys @ query),
                table("values", values),
            )
