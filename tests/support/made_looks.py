"""Looks with known weights, for tests of what shows them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import Attention, distance, entropy, glance
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.residual_norms import Norms
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look

CATS = ["the", "cats", "chase", "un", "believ", "ably", "quick", "mice"]
HOSTILE = (
    "<script>window.hacked = 1</script>", "</script>", "<!--", "]]>", "\"'`", "&amp;", "<img src=x onerror=hacked=1>",
    "\U0001f600", "\U0001f469\u200d\U0001f680", "שלום", "مرحبا", "x" * 10_000, "\n", "\0", "\u202eevil", "\u200b",
    "   ", "", "${hacked=1}", "\ud800", "\u2028",
)  # fmt: skip


def side(tokens: Sequence[str], inside: Collection[int] = ()) -> Side:
    """`inside` are the places that go on with the word before."""
    words: list[WholeWord] = []
    for place, token in enumerate(tokens):
        if place in inside:
            words[-1] = WholeWord(words[-1].text + token, [*words[-1].places, place])
        else:
            words.append(WholeWord(token, [place]))
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
) -> Attention:
    return Attention(
        kind,
        rows,
        columns,
        {number: layer for number, layer in enumerate(layers) if kept is None or number in kept},
        len(layers),
        layers[0].shape[0],
        causal,
        torch.stack([glance(layer) for layer in layers]),
        torch.stack([entropy(layer) for layer in layers]),
        torch.stack([distance(layer, kind) for layer in layers]),
    )


def guesses(tokens: Sequence[str]) -> list[list[Guess]]:
    """At each place five tokens of the text, from the likeliest on."""
    found = []
    for place in range(len(tokens)):
        likeliest = (torch.randn(5) * 2).softmax(-1).sort(descending=True).values.tolist()
        chances = [float(f"{chance:.4g}") for chance in likeliest]  # as a page has them
        ids = [(place + 1 + rank) % len(tokens) for rank in range(5)]
        found.append(
            [Guess(tokens[id], id, chance) for id, chance in zip(ids, chances, strict=True)]
        )
    return found


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
    """Of a GPT (a BERT if not causal), or of a translator where there is a source."""
    reading = Reading(side(tokens, inside))
    if source is not None:  # each place chooses what the next one reads, the last one the end
        chosen = side([*tokens[1:], "[end]"], [place - 1 for place in inside])
        reading = Reading(reading.text, side(source), chosen=chosen)
    text, read, T = reading.text, reading.source, len(tokens)

    def of(kind: str, rows: Side, columns: Side, causal: bool) -> Attention:
        random = [weights(heads, len(rows.ids), len(columns.ids), causal) for _ in range(depth)]
        return attention(kind, rows, columns, layers or random, causal, kept)

    if read is None:
        found = [of("self", text, text, causal)]
    else:
        found = [
            of("encoder", read, read, False),
            of("decoder", text, text, True),
            of("cross", reading.rows, read, False),
        ]
    both_ways = not causal and read is None
    residual = [5 * (layer + 1) * (1 + torch.rand(T)) for layer in range(depth + 1)]
    gradient = [torch.rand(T) + 0.01 for _ in range(depth + 1)]
    for layer in () if both_ways else gradient:
        layer[-1] = math.nan  # the last word is not asked what comes next
    norms = Norms(residual, gradient if both_ways or T > 1 else None)
    attribution = weights(1, T, len((read or text).ids), causal and read is None)[0]
    lens = [guesses(tokens) for _ in range(depth + 1)]
    return Look(model, reading, found, lens[-1], lens, norms, attribution, both_ways)


def recurrent_look() -> Look:
    """Of an RNN: its words look at the source alone, and there is one output to read."""
    look = made_look(
        ["[start]", "kediler", "kovalar"], source=["cats", "chase", "[end]"], depth=1, heads=1
    )
    assert look.lens is not None
    return replace(look, attention=look.attention[2:], lens=look.lens[-1:], norms=None)
