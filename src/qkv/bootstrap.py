"""How sure a score is: the data is drawn anew from its own units, with repetition, and scored again
and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

CONFIDENCE = 0.95
DRAWS = 1000
# units: of fewer, one alone is drawn so often that the ends would be the best and the worst unit
LEAST = 4


def bootstrap(
    units: Float[np.ndarray, "n k"] | Any,
    score: Callable[[Float[np.ndarray, "k"]], float],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> tuple[float, float] | tuple[None, None]:
    """The interval of a score that is a function of sums over the test's units, such as sentences.

    The test is drawn anew from its own units; of the scores found so, the middle 95% remain. The
    same seed finds the same interval. Of fewer than LEAST units there is none.
    """
    units = np.asarray(units, dtype=np.float64)
    if units.ndim != 2 or len(units) == 0:
        raise ValueError(f"units: expected shape (n, k) with one unit or more, not {units.shape}")
    if len(units) < LEAST:
        return None, None

    low, high = middle([score(times @ units) for times in drawn_anew(len(units), draws, seed)])

    return float(low), float(high)


def ratio_intervals(
    sums: Float[np.ndarray, "n K"],
    counts: Float[np.ndarray, "n K"] | Float[np.ndarray, "n 1"],
    *,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """The intervals of K ratios of sums over n units, all at once; NaN where there are too few
    units for one.
    """
    n, K = sums.shape
    if n < LEAST:
        return np.full(K, np.nan), np.full(K, np.nan)

    times = np.stack(list(drawn_anew(n, DRAWS, seed)))  # (draws, n)

    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (times @ sums) / (times @ counts)  # (draws, K)

    low, high = middle(drawn, np.nanquantile)  # a draw that has nothing to divide by is left out

    return low, high


def drawn_anew(n: int, draws: int, seed: int) -> Iterator[Int[np.ndarray, "n"]]:
    """How often each of n units comes, when n are drawn of them."""
    random = np.random.default_rng(seed)
    for _ in range(draws):
        yield np.bincount(random.integers(n, size=n), minlength=n)


def middle(found: Any, quantile: Callable[..., Any] = np.quantile) -> Float[np.ndarray, "2 *K"]:
    """The ends of the middle 95%."""
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    # Of what was found, not between it: between infinite perplexities there is nothing.
    return quantile(found, ends, axis=0, method="nearest")
