"""How far a score may be off because the test is only a sample: intervals that hold the truth 95
times in 100.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qkv.bootstrap import bootstrap

DEVIATIONS = 1.959963984540054  # of a normal: so far from its mean it lies 95 times in 100


@dataclass(frozen=True)
class Score:
    """A named number with its interval."""

    name: str
    value: float
    low: float | None
    high: float | None
    """None where the test has too few units for an interval."""
    higher_is_better: bool = True
    percent: bool = False
    """A part of 1, to be shown in percent."""


def accuracy(right: Sequence[bool], name: str = "accuracy") -> Score:
    low, high = wilson(sum(right), len(right))
    return Score(name, sum(right) / len(right), low, high, percent=True)


def wilson(successes: int | float, trials: int) -> tuple[float, float]:
    """Wilson's interval of a proportion: all p that are not further from what was found than 1.96
    of their deviations.

    Unlike mean plus or minus, it stays within 0 and 1 and says something where all were right, or
    none. A mean over several runs may have a part of a success.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes: expected 0 to {trials} of 1 trial or more, not {successes}")

    z, p = DEVIATIONS, successes / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = (
        z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    )
    low = 0.0 if successes == 0 else middle - reach  # exactly, whatever rounding would say
    high = 1.0 if successes == trials else middle + reach

    return low, high


def of_sums(
    name: str,
    units: Float[np.ndarray, "n k"],
    score: Callable[[Float[np.ndarray, "k"]], float],
    *,
    percent: bool = False,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Score:
    """A score that is a function of sums over units, with its interval."""
    low, high = bootstrap(units, score, seed=seed)
    return Score(name, score(units.sum(0)), low, high, higher_is_better, percent)


def ratio(sums: Float[np.ndarray, "2"]) -> float:
    """Such as right answers by all answers, where those of one unit are right or wrong together."""
    return float(sums[0] / max(sums[1], 1))


def perplexity(
    log_probabilities: Sequence[Sequence[float]], *, seed: int = 0, name: str = "perplexity"
) -> Score:
    """exp of the mean surprise of a word; each unit brings the log-probabilities of some words."""
    units = np.array([[math.fsum(unit), len(unit)] for unit in log_probabilities])
    low, high = bootstrap(units, exp_mean, seed=seed)
    return Score(name, exp_mean(units.sum(0)), low, high, higher_is_better=False)


def exp_mean(sums: Float[np.ndarray, "2"]) -> float:
    """Infinite where a number would overflow: a model may find a text almost impossible."""
    mean = -sums[0] / sums[1]
    return math.exp(mean) if mean < 700 else math.inf
