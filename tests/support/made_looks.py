"""Looks with random weights, for tests of pages and browsers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import CapturedAttention, distance, entropy, pool_overview
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.residual_norms import Norms
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look
from qkv.insight.walk.walk_choice import WALK_MAX_TOKENS
from support.made_model_walk import made_model_walk
from support.made_walks import made_walk

CATS = ["the", "cats", "chase", "un", "believ", "ably", "quick", "mice"]
HOSTILE = (
    "<script>window.hacked = 1</script>", "</script>", "<!--", "]]>", "\"'`", "&amp;",
    "<img src=x onerror=hacked=1>",
    "\U0001f600", "\U0001f469\u200d\U0001f680", "שלום", "مرحبا", "x" * 10_000, "\n", "\0",
    "\u202eevil", "\u200b",
    "   ", "", "${hacked=1}", "\ud800", "\u2028",
)  # fmt: skip


def side(tokens: Sequence[str], inside: Collection[int] = ()) -> Side:
    """A token sequence; tokens at the positions `inside` continue the previous word."""
    words: list[WholeWord] = []
    for position, token in enumerate(tokens):
        if position in inside:
            words[-1] = WholeWord(words[-1].text + token, [*words[-1].positions, position])
        else:
            words.append(WholeWord(token, [position]))
    return Side(tuple(range(len(tokens))), tuple(tokens), tuple(words))


def weights(heads: int, rows: int, columns: int, causal: bool) -> Float[Tensor, "H T S"]:
    scores = torch.randn(heads, rows, columns) * 2
    if causal:
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)


def attention(
    kind: str,
    rows: Side,
    columns: Side,
    layers: Sequence[Tensor],
    causal: bool,
    kept: Collection[int] | None = None,
) -> CapturedAttention:
    return CapturedAttention(
        kind,
        rows,
        columns,
        {number: layer for number, layer in enumerate(layers) if kept is None or number in kept},
        len(layers),
        layers[0].shape[0],
        causal,
        torch.stack([pool_overview(layer) for layer in layers]),
        torch.stack([entropy(layer) for layer in layers]),
        torch.stack([distance(layer, kind) for layer in layers]),
    )


def guesses(tokens: Sequence[str]) -> list[list[Guess]]:
    """At each position five tokens of the text, the likeliest first."""
    result = []
    for position in range(len(tokens)):
        probabilities = (torch.randn(5) * 2).softmax(-1).sort(descending=True).values.tolist()
        row = []
        for rank, probability in enumerate(probabilities):
            id = (position + 1 + rank) % len(tokens)
            row.append(Guess(tokens[id], id, float(f"{probability:.4g}")))  # as a page has them
        result.append(row)
    return result


def made_look(
    tokens: Sequence[str] = CATS,
    *,
    inside: Collection[int] = (),
    source: Sequence[str] | None = None,
    depth: int = 3,
    heads: int = 2,
    causal: bool = True,
    model: str = "a model",
    layers: Sequence[Tensor] | None = None,
    kept: Collection[int] | None = None,
) -> Look:
    """The look of a GPT (a BERT if not causal), or with a source of a translator."""
    reading = Reading(side(tokens, inside))
    if source is not None:  # each position predicts the next token
        chosen = side([*tokens[1:], "[end]"], [position - 1 for position in inside])
        reading = Reading(reading.text, side(source), chosen=chosen)
    text, read, T = reading.text, reading.source, len(tokens)

    def of(kind: str, rows: Side, columns: Side, causal: bool) -> CapturedAttention:
        random = [weights(heads, len(rows.ids), len(columns.ids), causal) for _ in range(depth)]
        return attention(kind, rows, columns, layers or random, causal, kept)

    if read is None:
        captured = [of("self", text, text, causal)]
    else:
        captured = [
            of("encoder", read, read, False),
            of("decoder", text, text, True),
            of("cross", reading.rows, read, False),
        ]
    walks = model_walk = None
    if T <= WALK_MAX_TOKENS:
        *_, last = captured
        S = len(last.columns.ids)
        walks = {(last.kind, 0, 0): made_walk(last.kind, T, S, causal and read is None)}
        model_walk = made_model_walk(reading, depth, heads)
    bidirectional = not causal and read is None
    residual = [5 * (layer + 1) * (1 + torch.rand(T)) for layer in range(depth + 1)]
    gradient = [torch.rand(T) + 0.01 for _ in range(depth + 1)]
    for layer in () if bidirectional else gradient:
        layer[-1] = math.nan  # the last token has no next token
    norms = Norms(residual, gradient if bidirectional or T > 1 else None)
    attribution = weights(1, T, len((read or text).ids), causal and read is None)[0]
    lens = [guesses(tokens) for _ in range(depth + 1)]
    parts = (lens[-1], lens, norms, attribution, bidirectional)
    return Look(model, reading, captured, *parts, walks=walks, model_walk=model_walk)


def recurrent_look() -> Look:
    """The look of an RNN: cross-attention alone, and one layer of predictions."""
    look = made_look(
        ["[start]", "kediler", "kovalar"], source=["cats", "chase", "[end]"], depth=1, heads=1
    )
    assert look.lens is not None
    walk = made_model_walk(look.reading, 1, 1, recurrent=True)
    lens = look.lens[-1:]
    return replace(look, attention=look.attention[2:], lens=lens, norms=None, model_walk=walk)
