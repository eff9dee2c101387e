"""The walk of a head with random numbers that fit together."""

from __future__ import annotations

import math

import torch

from qkv.generation.fill import Guess
from qkv.insight.walk.head_equation import HeadEquation
from qkv.insight.walk.head_lens import HeadLens, ProbabilityChange
from qkv.insight.walk.head_walk import HeadWalk

D, E = 4, 8


def made_walk(kind: str, T: int, S: int, causal: bool) -> HeadWalk:
    """The first head of the first layer at work on T queries and S keys."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    equation = HeadEquation("scaled_dot", math.sqrt(D), random(T, D), random(S, D), random(S, D))
    visible = torch.ones(T, S, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    scores = equation.scores(visible)
    weights = scores.softmax(-1)
    guesses = [[Guess("a", 0, 0.5), Guess("b", 1, 0.25)] for _ in range(T)]
    changes = [[ProbabilityChange("a", 0, 0.5, 0.75)] for _ in range(T)]
    return HeadWalk(
        kind,
        0,
        0,
        "none",
        "before",
        equation,
        visible,
        scores,
        weights,
        weights @ equation.value,
        random(T, E),
        random(T, E),
        HeadLens(guesses, guesses, changes),
    )
