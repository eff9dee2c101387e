"""Bootstrap confidence intervals: resample the units of the data with replacement and rescore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

CONFIDENCE = 0.95
DRAWS = 1000
LEAST = 4
"""Units that an interval needs: with fewer, its ends would be the best and the worst unit."""


def bootstrap(
    units: Float[np.ndarray, "n k"] | Any,
    score: Callable[[Float[np.ndarray, "k"]], float],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> tuple[float, float] | tuple[None, None]:
    """The 95% bootstrap interval of a score that is a function of sums over units.

    Args:
        units: The summands of each unit, such as a sentence.
        score: The score of the summed units.
        seed: Seed of the resampling; the same seed gives the same interval.
        draws: Number of resamples.

    Returns:
        The ends of the interval, or None and None for fewer than LEAST units.

    Raises:
        ValueError: There are no units, or they are not a matrix.
    """
    units = np.asarray(units, dtype=np.float64)
    if units.ndim != 2 or len(units) == 0:
        raise ValueError(f"units: expected shape (n, k) with one unit or more, not {units.shape}")
    if len(units) < LEAST:
        return None, None

    scores = [score(counts @ units) for counts in resampled_counts(len(units), draws, seed)]
    low, high = middle(scores)

    return float(low), float(high)


def ratio_intervals(
    sums: Float[np.ndarray, "n K"],
    counts: Float[np.ndarray, "n K"] | Float[np.ndarray, "n 1"],
    *,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """The 95% intervals of K ratios of sums over n units; NaN if there are too few units.

    Args:
        sums: The numerators of each unit.
        counts: The denominators of each unit.
        seed: Seed of the resampling.

    Returns:
        The lower and the upper ends.
    """
    n, K = sums.shape
    if n < LEAST:
        return np.full(K, np.nan), np.full(K, np.nan)

    times = np.stack(list(resampled_counts(n, DRAWS, seed)))  # (draws, n)

    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = (times @ sums) / (times @ counts)  # (draws, K)

    low, high = middle(ratios, np.nanquantile)  # leaves out resamples with a zero denominator

    return low, high


def resampled_counts(n: int, draws: int, seed: int) -> Iterator[Int[np.ndarray, "n"]]:
    """For each resample, how often each of the n units is drawn."""
    random = np.random.default_rng(seed)
    for _ in range(draws):
        yield np.bincount(random.integers(n, size=n), minlength=n)


def middle(scores: Any, quantile: Callable[..., Any] = np.quantile) -> Float[np.ndarray, "2 *K"]:
    """The ends of the middle 95%."""
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    # "nearest" picks one of the scores: interpolating between infinite perplexities gives NaN.
    return quantile(scores, ends, axis=0, method="nearest")
