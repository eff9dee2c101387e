"""Checks of exercise 4: masks and masked attention equal those of `qkv.nn.attention`."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.learn.exercises.mechanism.mask_inputs import (
    draw_lengths,
    draw_scores,
    right_causal,
    right_padding,
    right_softmax,
)
from qkv.learn.exercises.mechanism.self_attention_checks import draw_attention, result_of
from qkv.learn.expectations import (
    Failed,
    FailingExample,
    InputDraw,
    call_with,
    check,
    expect_double,
    expect_dtype,
    expect_equal,
    expect_gradients,
    expect_pair,
    expect_shape,
    table,
)
from qkv.nn.attention import attend
from qkv.nn.attention.score import dot, scaled_dot

ROUND = "True and False are the wrong way round: True is where a query may attend"


@check("causal_mask", "A position sees itself and earlier ones")
def who_sees_whom(mine: ModuleType, draw: InputDraw) -> None:
    for T in (draw.size, draw.size + 1, 4 * draw.size):
        found = mine.causal_mask(T)
        expect_shape(found, (T, T), "causal_mask", "(T, T)")
        expect_dtype(found, torch.bool, "causal_mask")
        right = right_causal(T)
        drawn = table("causal_mask", found)
        if T > 1 and torch.equal(found, ~right):
            raise Failed(f"causal_mask: {ROUND}", drawn)
        if T > 1 and torch.equal(found, right.T):
            raise Failed(
                "causal_mask: it is transposed: row t belongs to query t and column s to key s, "
                "so that position 0 sees only itself",
                drawn,
            )

        for query, key in (found != right).nonzero().tolist():
            say_pair(query, key, bool(found[query, key]), drawn)


def say_pair(query: int, key: int, seen: bool, drawn: FailingExample) -> None:
    """Fail with what is wrong about a pair of positions."""
    if seen:
        raise Failed(f"position {query} sees position {key}: a causal mask forbids it", drawn)
    if query == key:
        raise Failed(f"position {query} does not see itself: a causal mask allows it", drawn)

    raise Failed(
        f"position {query} does not see position {key}: a causal mask allows earlier positions",
        drawn,
    )


@check("padding_mask", "The tokens of each sequence are seen, and its padding is not")
def padding_hidden(mine: ModuleType, draw: InputDraw) -> None:
    lengths = draw_lengths(draw, draw.size + 3)
    for S in (draw.size + 3, draw.size + 5):
        compare_padding(mine, lengths, S)


def compare_padding(mine: ModuleType, lengths: Tensor, S: int) -> None:
    """Fail unless the padding mask is right, with what is wrong about a key."""
    found = call_with(mine.padding_mask, {"lengths": lengths, "S": S})
    expect_shape(found, (len(lengths), 1, 1, S), "padding_mask", "(B, 1, 1, S)")
    expect_dtype(found, torch.bool, "padding_mask")
    right = right_padding(lengths, S)
    examples = (table("lengths", lengths), table("padding_mask (B, S)", found[:, 0, 0]))
    if torch.equal(found, ~right):
        raise Failed(f"padding_mask: {ROUND}", *examples)
    if torch.equal(found, right.flip(-1)):
        raise Failed("padding_mask: the padding comes after the tokens, not before", *examples)

    for sequence, key in (found != right)[:, 0, 0].nonzero().tolist():
        length = int(lengths[sequence])
        verb, kind = "hides", "a token"
        if key >= length:
            verb, kind = "shows", "padding"

        raise Failed(
            f"padding_mask {verb} key {key} of sequence {sequence}, whose length is {length} "
            f"(positions are counted from 0): it is {kind}",
            *examples,
        )


@check("causal_padding_mask", "A key is seen if both masks allow it")
def both_masks(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 2
    lengths = draw_lengths(draw, T)
    found = call_with(mine.causal_padding_mask, {"lengths": lengths, "T": T})
    expect_dtype(found, torch.bool, "causal_padding_mask")
    causal = right_causal(T)
    padding = right_padding(lengths, T)
    expect_equal(
        found,
        causal & padding,
        "causal_padding_mask",
        {
            "causal_padding_mask: a key is seen if one of the masks allows it; both must": (
                causal | padding
            ),
            "causal_padding_mask: the padding is not hidden": (
                causal.expand(len(lengths), 1, T, T)
            ),
            "causal_padding_mask: later positions are not hidden": (
                padding.expand(len(lengths), 1, T, T)
            ),
            "causal_padding_mask: padding is hidden as a query, too: a row of the mask belongs to "
            "a query, and only keys are hidden": causal & padding & padding.mT,
            "causal_padding_mask: padding is hidden as a query, not as a key: the padding mask is "
            "transposed": causal & padding.mT,
        },
        shape="(B, 1, T, T)",
        inputs={"lengths": lengths},
    )


@check("masked_softmax", "Hidden keys get 0, the others sum to 1")
def hidden_keys(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_scores(draw, empty=False)
    scores, mask = inputs.values()
    after = scores.softmax(-1) * mask
    queries = scores.masked_fill(~mask, -math.inf).softmax(-2)
    sums = after.sum(-1).flatten()
    expect_equal(
        call_with(mine.masked_softmax, inputs),
        right_softmax(scores, mask),
        "masked_softmax",
        {
            f"rows of the weights sum to {sums[0]:.3g}, not 1: the mask comes after the softmax; "
            "set the scores of hidden keys to -inf before it": after,
            "masked_softmax: hidden keys get the score 0, and exp(0) = 1 is a weight; their score "
            "must be -inf": (scores * mask).softmax(-1),
            "masked_softmax: hidden keys get the score 0 before the softmax and the weight 0 after "
            "it: they still count in the sum of exp; their score must be -inf": (
                (scores * mask).softmax(-1) * mask
            ),
            f"masked_softmax: {ROUND}": right_softmax(scores, ~mask),
            "masked_softmax: the mask is not used": scores.softmax(-1),
            "masked_softmax: the mask is added to the scores as 0 and 1; hidden keys need -inf": (
                (scores + mask).softmax(-1)
            ),
            "masked_softmax: the softmax is over queries; the keys are the last dimension": (
                queries.masked_fill(~mask, 0)
            ),
            "masked_softmax: these are the masked scores; the softmax is missing": (
                scores.masked_fill(~mask, -math.inf)
            ),
        },
        shape="(..., T, S)",
        inputs={"scores": scores, "mask": mask},
    )


@check("masked_softmax", "A query that may attend nowhere has only weights of 0")
def empty_rows(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_scores(draw, empty=True)
    scores, mask = inputs.values()
    right = right_softmax(scores, mask)
    nowhere = ~mask.any(-1, keepdim=True)
    uniform = right + nowhere / scores.shape[-1]
    expect_equal(
        call_with(mine.masked_softmax, inputs),
        right,
        "masked_softmax, with a query that may attend nowhere",
        {
            "masked_softmax: every key is hidden from the last query, and the softmax of nothing "
            "but -inf is 0/0 = NaN; its weights must be 0": right.masked_fill(nowhere, math.nan),
            "masked_softmax: every key is hidden from the last query, but its weights are all "
            f"1/{scores.shape[-1]}; they must be 0": uniform,
            "masked_softmax: every key is hidden from the last query, but it has the weights of a "
            "softmax without the mask; they must be 0": right + nowhere * scores.softmax(-1),
        },
        inputs={"scores": scores, "mask": mask},
    )


@check("masked_softmax", "Large scores change nothing")
def large_masked_scores(mine: ModuleType, draw: InputDraw) -> None:
    _, mask = draw_scores(draw, empty=False).values()
    drawn = draw.normal(*mask.shape)

    # A hidden score far above all others, of which nothing may be left
    above = drawn.masked_fill(~mask, 1e4)
    found = call_with(mine.masked_softmax, {"scores": above, "mask": mask})
    expect_equal(
        found,
        right_softmax(above, mask),
        "masked_softmax, with hidden scores of 10000 (hide them before exp and its sum)",
        inputs={"scores": above, "mask": mask},
    )

    # Allowed scores far below any number that stands for -inf
    below = drawn - 2e12
    found = call_with(mine.masked_softmax, {"scores": below, "mask": mask})
    expect_equal(
        found,
        right_softmax(below, mask),
        "masked_softmax, with scores of -2e12: a number such as -1e9 is not -inf: hidden keys get "
        "the larger score",
        inputs={"scores": below, "mask": mask},
    )


@check("masked_softmax", "It takes every mask that broadcasts, with gradients and in float64")
def masked_softmax_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_scores(draw, empty=True)
    scores, mask = inputs.values()
    S = scores.shape[-1]
    masks = (mask, mask[0, 0], right_padding(draw_lengths(draw, S)[: len(scores)], S))
    for one in masks:
        shape = tuple(one.shape)
        found = call_with(mine.masked_softmax, {"scores": scores, "mask": one})
        expect_equal(found, right_softmax(scores, one), f"masked_softmax, mask {shape}")
        expect_gradients(
            lambda s, one=one: mine.masked_softmax(s, one),
            lambda s, one=one: right_softmax(s, one),
            {"scores": scores},
            "masked_softmax",
        )
        expect_double(
            lambda s, one=one: mine.masked_softmax(s, one),
            lambda s, one=one: right_softmax(s, one),
            {"scores": scores},
            "masked_softmax",
        )


@check("weight_left", "What a mask after the softmax leaves of each row")
def left_of_rows(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_scores(draw, empty=True)
    scores, mask = inputs.values()
    weights = scores.softmax(-1)
    right = (weights * mask).sum(-1)
    expect_equal(
        call_with(mine.weight_left, inputs),
        right,
        "weight_left",
        {
            "weight_left: these rows sum to 1: the mask comes before the softmax; here it comes "
            "after": right_softmax(scores, mask).sum(-1),
            "weight_left: this is the weight of hidden keys; sum what is left": 1 - right,
            "weight_left: this is the sum of each column; sum over the keys": (
                (weights * mask).sum(-2)
            ),
            "weight_left: these rows sum to 1: the weights of hidden keys are not set to 0": (
                weights.sum(-1)
            ),
        },
        shape="(..., T)",
        inputs={"weights of all keys": weights, "mask": mask},
    )


def attended(mine: ModuleType, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Output and weights of the student's function."""
    found = call_with(mine.masked_attend, inputs)
    return expect_pair(found, "masked_attend", "output", "weights")


@check("masked_attend", "A position sees nothing of later positions")
def later_positions(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 1
    mask = right_causal(T)
    query, key, value = draw.normal(T, 3), draw.normal(T, 3), draw.normal(T, 2)
    inputs = {"query": query, "key": key, "value": value, "mask": mask}
    before, _ = attended(mine, inputs)
    expect_shape(before, (T, 2), "the output of masked_attend", "(T, X)")
    for changed in ("value", "key"):
        for position in range(1, T):
            other = {**inputs, changed: inputs[changed].clone()}
            other[changed][position] += 1
            after, _ = attended(mine, other)
            moved = (after - before).abs().amax(-1)[:position] > 1e-5
            if not moved.any():
                continue

            seeing = int(moved.nonzero()[0])
            reason = "a causal mask forbids it"
            if changed == "key":
                reason += "; only its key changed, so the mask comes after the softmax"

            raise Failed(
                f"position {seeing} sees position {position}: {reason}",
                table("output", before),
                table(f"output, with another {changed} at position {position}", after),
            )


@check("masked_attend", "It equals attention without a mask, and with each of the masks")
def masked_attention(mine: ModuleType, draw: InputDraw) -> None:
    size = draw.size
    T = size + 2
    tensors = {
        "query": draw.normal(size, 2, T, 4),
        "key": draw.normal(size, 2, T, 4),
        "value": draw.normal(size, 2, T, 5),
    }
    padding = right_padding(draw_lengths(draw, T)[-size:], T)
    masks = {
        "no mask": None,
        "a causal mask": right_causal(T),
        "a padding mask": padding,
        "both masks": right_causal(T) & padding,
    }
    for name, mask in masks.items():
        inputs = dict(tensors)
        if mask is not None:
            inputs["mask"] = mask

        compare_attention(mine, inputs, mask, name)


@check("masked_attend", "There may be more keys than queries, and any leading dimensions")
def more_keys(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)
    T, S = inputs["query"].shape[-2], inputs["key"].shape[-2]
    mask = draw.integers(2, T, S).bool()
    compare_attention(mine, {**inputs, "mask": mask}, mask, "a mask (T, S)")
    compare_attention(mine, inputs, None, "no mask")
    large = {**inputs, "query": 1000 * inputs["query"], "mask": mask}
    compare_attention(mine, large, mask, "a mask (T, S) and large scores")


def compare_attention(
    mine: ModuleType, inputs: dict[str, Tensor], mask: Tensor | None, name: str
) -> None:
    """Fail unless output and weights are those of the library."""
    query, key, value, *_ = inputs.values()
    output, weights = attended(mine, inputs)
    scores = scaled_dot(query, key)
    raw = dot(query, key)
    whole = None if mask is None else mask.expand(*mask.shape[:-2], *scores.shape[-2:])
    right_output, right_weights = attend(query, key, value, mask=whole, need_weights=True)
    assert right_weights is not None

    # Mistakes, first those with the scale, then those with the mask
    begin = f"masked_attend with {name}:"
    allowed = torch.ones((), dtype=torch.bool) if mask is None else mask
    scales = {
        f"{begin} the scores are not divided by sqrt(D)": 1.0,
        f"{begin} the scores are divided by D, not by sqrt(D)": query.shape[-1],
        f"{begin} the scale is the width of values; D is that of a query": value.shape[-1] ** 0.5,
        f"{begin} the scale is sqrt(T); D is the width of a query": query.shape[-2] ** 0.5,
    }
    mistakes = {said: right_softmax(raw / scale, allowed) for said, scale in scales.items()}
    if mask is not None:
        mistakes |= {
            f"{begin} the mask comes after the softmax": scores.softmax(-1) * mask,
            f"{begin} {ROUND}": right_softmax(scores, ~mask),
            f"{begin} the mask is not used": scores.softmax(-1),
            f"{begin} a query that may attend nowhere has NaN for weights; they must be 0": (
                scores.masked_fill(~mask, -math.inf).softmax(-1)
            ),
        }

    what = f"the weights of masked_attend with {name}"
    expect_equal(weights, right_weights, what, mistakes, shape="(..., T, S)")
    what = f"the output of masked_attend with {name}"
    expect_equal(output, right_output, what, shape="(..., T, X)")


@check("masked_attend", "It works with gradients and in float64")
def masked_attend_in_training(mine: ModuleType, draw: InputDraw) -> None:
    inputs = draw_attention(draw)
    T, S = inputs["query"].shape[-2], inputs["key"].shape[-2]
    mask = draw.integers(2, T, S).bool()
    mask[0] = False

    def right(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return attend(query, key, value, mask=mask, need_weights=True)

    def masked(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return mine.masked_attend(query, key, value, mask)

    for number, name in enumerate(("output", "weights")):
        what = f"the {name} of masked_attend"
        expect_gradients(result_of(masked, number), result_of(right, number), inputs, what)
        expect_double(result_of(masked, number), result_of(right, number), inputs, what)
