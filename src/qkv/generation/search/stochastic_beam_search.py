"""Stochastic beam search (Kool, van Hoof, Welling 2019): n different sequences, drawn without
replacement.

Add a Gumbel number to every sequence's log-probability, and the highest n are a draw without
replacement. There are too many sequences to do so, but the highest sum below a beginning can be
drawn before what is below it: it is a Gumbel number around the beginning's own log-probability. So
a beam search that ranks by these sums finds the highest n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from qkv.generation.generate import Translator
from qkv.generation.prompts import Arrays, Prompts
from qkv.generation.sampling import as_seeds
from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.search.beam_search import Hypothesis
from qkv.generation.search.search_loop import check, search, settle
from qkv.generation.top_tokens import log_probabilities
from qkv.models import GPT


class DrawOptions(TypedDict, total=False):
    start: int | None
    temperature: float
    minimum: int
    forbidden: Sequence[int]
    seed: int | Sequence[int] | None
    batch: int


@overload
def stochastic_beam_search(
    model: GPT | Translator,
    source: Sequence[int],
    *,
    end: int | None,
    length: int,
    samples: int,
    **how: Unpack[DrawOptions],
) -> list[Hypothesis]: ...
@overload
def stochastic_beam_search(
    model: GPT | Translator,
    source: Sequence[Sequence[int]],
    *,
    end: int | None,
    length: int,
    samples: int,
    **how: Unpack[DrawOptions],
) -> list[list[Hypothesis]]: ...
@overload
def stochastic_beam_search(
    model: GPT | Translator,
    source: Arrays,
    padding_mask: Tensor | None = None,
    *,
    end: int | None,
    length: int,
    samples: int,
    **how: Unpack[DrawOptions],
) -> list[Any]: ...
def stochastic_beam_search(
    model: GPT | Translator,
    source: Prompts,
    padding_mask: Bool[Tensor, "*B S"] | None = None,
    *,
    start: int | None = None,
    end: int | None,
    length: int,
    samples: int,
    temperature: float = 1.0,
    minimum: int = 0,
    forbidden: Sequence[int] = (),
    seed: int | Sequence[int] | None = None,
    batch: int = 16,
) -> list[Any]:
    """`samples` different hypotheses of each row (fewer, if there are no more), in the order in
    which they were drawn.

    Each next one is drawn by its probability among those that are left. The score is the
    log-probability with its Gumbel number. A row's draw depends on its seed alone; a list has one
    for each row. The rest is as in `beam_search`.
    """
    one, rows, single = settle(model, source, padding_mask, start)
    check(one, length, end, minimum, forbidden, samples, "samples")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature: expected more than 0, not {temperature}")

    seeds = as_seeds(seed, len(rows))
    found: dict[int, Draw] = {}

    def begin(number: int, length: int) -> Draw:
        found[number] = Draw(samples, end, length, np.random.default_rng(seeds[number]))
        return found[number]

    def advance(
        logits: Float[Tensor, "R V"], draws: list[Draw], said: int
    ) -> list[list[tuple[int, int]]]:
        never = [*forbidden, *([end] if end is not None and said < minimum else [])]
        logits = logits.cpu().double() / temperature
        logits[
            :, never
        ] = -math.inf  # what is left shares the probability: this is a draw, not a ranking
        scores = log_probabilities(logits)  # (R, V)
        if bool(scores.isnan().any()):
            raise ValueError(NO_LIKELIEST)

        by_draw = scores.numpy().reshape(len(draws), -1, scores.shape[1])

        return [draw.advance(its) for draw, its in zip(draws, by_draw, strict=True)]

    search(one, rows, start, length, batch, begin, advance)
    drawn = [found[number].hypotheses() for number in range(len(rows))]

    return drawn[0] if single else drawn


@dataclass
class Draw:
    """The highest `samples` sums of one sentence so far, ended or open."""

    samples: int
    end: int | None
    length: int
    random: np.random.Generator
    ended: list[Hypothesis] = field(default_factory=list)
    open: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open.append(
            Hypothesis([], float(self.random.gumbel()), 0.0)
        )  # the highest of all sums

    def advance(self, scores: Float64[np.ndarray, "R V"]) -> list[tuple[int, int]]:
        """Every open beam's sum is handed down to its words; of all, the highest go on."""
        totals = (
            np.array([[beam.log_probability] for beam in self.open]) + scores[: len(self.open)]
        )  # (R, V)
        sums = handed_down(
            np.array([[beam.score] for beam in self.open]),
            totals + self.random.gumbel(size=totals.shape),
        )
        highest = np.argsort(-sums, axis=None, kind="stable")[: self.samples].tolist()
        leaves, going = self.ended, []

        for at in highest:
            old, word = divmod(at, scores.shape[1])
            text, total = self.open[old].ids, float(totals.flat[at])
            if total == -math.inf:
                continue

            ids = text if word == self.end else [*text, word]
            beam = Hypothesis(ids, float(sums.flat[at]), total)
            if word == self.end or len(text) + 1 == self.length:
                leaves.append(beam)
            else:
                going.append((beam, old, word))

        kept = sorted([each.score for each in leaves] + [beam.score for beam, _, _ in going])[
            -self.samples :
        ]
        self.ended = [each for each in leaves if each.score >= kept[0]]
        going = [each for each in going if each[0].score >= kept[0]]
        self.open = [beam for beam, _, _ in going]
        chosen = [(old, word) for _, old, word in going]

        return chosen + [(0, 0)] * (self.samples - len(chosen)) if chosen else []

    def hypotheses(self) -> list[Hypothesis]:
        return sorted(self.ended, key=lambda each: -each.score)


def handed_down(
    highest: Float64[np.ndarray, "R 1"], sums: Float64[np.ndarray, "R V"]
) -> Float64[np.ndarray, "R V"]:
    """Gumbel sums as they would be if the highest of each row were known to be this."""
    with np.errstate(divide="ignore"):
        below = log_of_rest(sums - sums.max(1, keepdims=True))

    more = highest - sums + below
    return highest - np.maximum(0, more) - np.log1p(np.exp(-np.abs(more)))


def log_of_rest(x: Float64[np.ndarray, "R V"]) -> Float64[np.ndarray, "R V"]:
    """log(1 - exp(x)) for x of 0 and less, without losing what is small."""
    return np.where(x > -math.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
