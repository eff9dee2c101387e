"""Scores with 95% confidence intervals: Wilson's interval of accuracies, bootstrap for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qkv.bootstrap import bootstrap
from qkv.nn.config import documented

Z = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution."""


@documented
@dataclass(frozen=True)
class Score:
    """A named number with its confidence interval.

    Example:
        >>> score = Score("perplexity", 12.5, 11.9, 13.2, higher_is_better=False)
        >>> score.low <= score.value <= score.high
        True
    """

    name: str
    """Name of the metric."""
    value: float
    """The score."""
    low: float | None
    """Lower end of the interval; None if there are too few units for one."""
    high: float | None
    """Upper end of the interval; None if there are too few units for one."""
    higher_is_better: bool = True
    """False for perplexities and errors."""
    percent: bool = False
    """True if the value is a fraction that is shown in percent."""


def accuracy(correct: Sequence[bool], name: str = "accuracy") -> Score:
    """The fraction of correct answers with Wilson's interval."""
    hits = sum(correct)
    low, high = wilson(hits, len(correct))
    return Score(name, hits / len(correct), low, high, percent=True)


def wilson(successes: int | float, trials: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of a proportion.

    It holds every p from which the observed proportion is at most 1.96 standard deviations away.
    Unlike the normal approximation it stays within 0 and 1 and is meaningful if all or no trials
    succeed. A mean over several runs may have fractional successes.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes: expected 0 to {trials} of 1 trial or more, not {successes}")

    p = successes / trials
    shrink = 1 + Z * Z / trials
    centre = (p + Z * Z / (2 * trials)) / shrink
    variance = p * (1 - p) / trials + Z * Z / (4 * trials * trials)
    half_width = Z / shrink * math.sqrt(variance)

    # Exact ends, free of rounding
    low = 0.0 if successes == 0 else centre - half_width
    high = 1.0 if successes == trials else centre + half_width

    return low, high


def bootstrap_score(
    name: str,
    units: Float[np.ndarray, "n k"],
    score: Callable[[Float[np.ndarray, "k"]], float],
    *,
    percent: bool = False,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Score:
    """A score that is a function of sums over units, with its bootstrap interval."""
    low, high = bootstrap(units, score, seed=seed)
    return Score(name, score(units.sum(0)), low, high, higher_is_better, percent)


def ratio(sums: Float[np.ndarray, "2"]) -> float:
    """The quotient of two sums, such as correct answers over all answers."""
    return float(sums[0] / max(sums[1], 1))


def perplexity(
    log_probabilities: Sequence[Sequence[float]], *, seed: int = 0, name: str = "perplexity"
) -> Score:
    """exp of the mean negative log-probability; the bootstrap draws the given units of tokens."""
    units = np.array([[math.fsum(unit), len(unit)] for unit in log_probabilities])
    return bootstrap_score(name, units, exp_mean, higher_is_better=False, seed=seed)


def exp_mean(sums: Float[np.ndarray, "2"]) -> float:
    """exp of the negative mean, infinite instead of an overflow."""
    mean = -sums[0] / sums[1]
    return math.exp(mean) if mean < 700 else math.inf
