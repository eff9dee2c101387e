"""Stochastic beam search (Kool, van Hoof, Welling 2019): n sequences without replacement.

Add a Gumbel number to the log-probability of every sequence, and the highest n are a draw without
replacement. There are too many sequences to do so, but the highest sum below a beginning can be
drawn before those below it: it is a Gumbel number around the beginning's own log-probability. So a
beam search that ranks by these sums finds the highest n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from qkv.generation.generate import Translator
from qkv.generation.prompts import Prompts
from qkv.generation.sampling import as_seeds
from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.search.beams import Hypothesis, SequenceRule, by_score
from qkv.generation.search.search_loop import prepare, search
from qkv.generation.top_tokens import log_probabilities


def stochastic_beam_search(
    model: Translator,
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
    """Draw `samples` different hypotheses of each row, each by its probability among the rest.

    Args:
        model: A translator, several of them, or a GPT.
        source: What a translator reads, or a GPT's prompt: one row of ids, or several.
        padding_mask: For a tensor, False for its padding.
        start: The id that a target begins with; not for a GPT.
        end: The id that ends a sequence.
        length: Tokens of a sequence at most, including the end.
        samples: Hypotheses of a row; there are fewer if no more exist.
        temperature: Divides the logits; above 0.
        minimum: Tokens before an end may come.
        forbidden: Ids that are never generated.
        seed: Makes the draw reproducible; a list has one seed per row.
        batch: Rows that are searched at a time; the result does not depend on it.

    Returns:
        The hypotheses of the row, or of each of several rows, in the order in which they were
        drawn. A score is the log-probability with its Gumbel number.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=16, context=8, width=8, depth=1, heads=2))
        >>> len(stochastic_beam_search(model, [1, 2], end=0, length=3, samples=4, seed=0))
        4
    """
    model, rows, single = prepare(model, source, padding_mask, start)
    rule = DrawRule(
        end=end, beams=samples, minimum=minimum, forbidden=forbidden, temperature=temperature
    )
    seeds = as_seeds(seed, len(rows))
    draws = search(
        model,
        rows,
        rule,
        lambda row, fits: Draw(rule, fits, np.random.default_rng(seeds[row])),
        start,
        length,
        batch,
    )
    drawn = [by_score(draw.ended) for draw in draws]
    return drawn[0] if single else drawn


@dataclass(frozen=True, kw_only=True)
class DrawRule(SequenceRule):
    """The parameters of a stochastic beam search."""

    temperature: float
    beams_name: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature: expected more than 0, not {self.temperature}")

    def advance(
        self, logits: Float[Tensor, "R V"], draws: list[Draw], step: int
    ) -> list[list[tuple[int, int]]]:
        """The highest sums of every sentence after one more token."""
        # The remaining tokens share the probability of those: this is a draw, not a ranking.
        logits = logits.cpu().double() / self.temperature
        logits[:, self.excluded(step)] = -math.inf
        logprobs = log_probabilities(logits)  # (R, V)
        if bool(logprobs.isnan().any()):
            raise ValueError(NO_LIKELIEST)

        by_draw = logprobs.numpy().reshape(len(draws), -1, logprobs.shape[1])
        return [draw.advance(scores) for draw, scores in zip(draws, by_draw, strict=True)]


@dataclass
class Draw:
    """The highest `samples` sums of one sentence so far, ended or open."""

    rule: DrawRule
    length: int
    random: np.random.Generator
    ended: list[Hypothesis] = field(default_factory=list)
    open: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        highest = float(self.random.gumbel())  # of all sums
        self.open.append(Hypothesis([], highest, 0.0))

    def advance(self, scores: Float64[np.ndarray, "R V"]) -> list[tuple[int, int]]:
        """Draw the sums of every open beam's continuations, and keep the highest of all."""
        before = np.array([[beam.log_probability] for beam in self.open])
        totals = before + scores[: len(self.open)]  # (R, V)
        highest = np.array([[beam.score] for beam in self.open])
        sums = conditioned(highest, totals + self.random.gumbel(size=totals.shape))

        going: list[tuple[Hypothesis, int, int]] = []
        for index in np.argsort(-sums, axis=None, kind="stable")[: self.rule.beams].tolist():
            total = float(totals.flat[index])
            if total == -math.inf:
                continue

            old, token = divmod(index, scores.shape[1])
            ids = self.open[old].ids
            is_last = token == self.rule.end or len(ids) + 1 == self.length
            if token != self.rule.end:
                ids = [*ids, token]

            beam = Hypothesis(ids, float(sums.flat[index]), total)
            if is_last:
                self.ended.append(beam)
            else:
                going.append((beam, old, token))

        return self.keep_highest(going)

    def keep_highest(self, going: list[tuple[Hypothesis, int, int]]) -> list[tuple[int, int]]:
        """Keep the highest sums among ended and open beams; return the old beam and its token."""
        samples = self.rule.beams
        every = [*self.ended, *(beam for beam, _, _ in going)]
        lowest = by_score(every)[:samples][-1].score
        self.ended = [beam for beam in self.ended if beam.score >= lowest]

        self.open = []
        chosen = []
        for beam, old, token in going:
            if beam.score >= lowest:
                self.open.append(beam)
                chosen.append((old, token))

        if not chosen:
            return []

        return chosen + [(0, 0)] * (samples - len(chosen))


def conditioned(
    highest: Float64[np.ndarray, "R 1"], sums: Float64[np.ndarray, "R V"]
) -> Float64[np.ndarray, "R V"]:
    """Gumbel sums, given that the highest of each row is `highest`."""
    with np.errstate(divide="ignore"):
        below = log_of_rest(sums - sums.max(1, keepdims=True))

    more = highest - sums + below
    return highest - np.maximum(0, more) - np.log1p(np.exp(-np.abs(more)))


def log_of_rest(x: Float64[np.ndarray, "R V"]) -> Float64[np.ndarray, "R V"]:
    """log(1 - exp(x)) for x <= 0, without losing small numbers."""
    return np.where(x > -math.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
