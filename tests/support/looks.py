"""Looks made by hand, with known numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.residual_norms import Norms
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look
from support.made_model_walk import made_model_walk
from support.made_walks import made_walk

HOSTILE = (
    "<script>alert(1)</script>",
    '"quotes" & $x_1$',
    "[bold]red[/bold]",
    "東京タワー",
    "كتاب",
    "😀",
    "a" * 10_000,
)


def side_of(tokens: Sequence[str], words: Sequence[WholeWord] | None = None) -> Side:
    """A token sequence; by default each token is a word."""
    if words is None:
        words = [WholeWord(token, [position]) for position, token in enumerate(tokens)]
    return Side(tuple(range(len(tokens))), tuple(tokens), tuple(words))


def attention_of(
    weights: Tensor, rows: Side, columns: Side, kind: str = "self", causal: bool = False
) -> CapturedAttention:
    """Captured attention from weights (L, H, T, S)."""
    L, H = weights.shape[:2]
    entropy = torch.special.entr(weights).sum(-1).mean(-1) / torch.log(torch.tensor(2.0))  # (L, H)
    distance = torch.arange(L * H).reshape(L, H).float()
    if kind == "cross":
        distance = torch.full((L, H), float("nan"))
    return CapturedAttention(
        kind, rows, columns, dict(enumerate(weights)), L, H, causal, weights, entropy, distance
    )


def look_at(
    tokens: Sequence[str],
    *,
    layers: int = 2,
    heads: int = 3,
    words: Sequence[WholeWord] | None = None,
) -> Look:
    """The look of a GPT: random causal weights, and known guesses, norms and attributions."""
    T = len(tokens)
    side = side_of(tokens, words)
    scores = torch.randn(layers, heads, T, T, generator=torch.Generator().manual_seed(0))
    weights = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf")).softmax(-1)
    guesses = [[Guess(f"after {token}", 1, 0.75), Guess("other", 2, 0.125)] for token in tokens]
    lens = [
        [[Guess(f"{layer} {token}", 3, layer / (layers + 1))] for token in tokens]
        for layer in range(layers + 1)
    ]
    residual = [torch.arange(1, T + 1) * (layer + 1.0) for layer in range(layers + 1)]
    gradient = [torch.cat([norm[:-1] / 100, torch.tensor([torch.nan])]) for norm in residual]
    norms = Norms(residual, gradient if T > 1 else None)
    return Look(
        "made up",
        Reading(side),
        [attention_of(weights, side, side, causal=True)],
        guesses,
        lens,
        norms,
        weights[0, 0],
        walks={("self", 0, 0): made_walk("self", T, T, causal=True)},
        model_walk=made_model_walk(Reading(side), layers, heads),
    )


def translation(source: Sequence[str], target: Sequence[str], weights: Tensor) -> Look:
    """The look of a translator with cross-attention (T, S) alone; the target is as predicted."""
    text = side_of(["[start]", *target[:-1]])
    rows = side_of(target)
    columns = side_of(source)
    attention = attention_of(weights[None, None], rows, columns, "cross")
    return Look("translator", Reading(text, columns, chosen=rows), [attention], None, None, None)
