"""How sure many ratios are, all at once: the data is drawn anew from its own texts, with repetition."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

DRAWS = 1000
LEAST = 4  # texts: of fewer, one alone is drawn so often that the ends would be the best and the worst text


def ratio_intervals(
    sums: Float[np.ndarray, "n K"], counts: Float[np.ndarray, "n K"] | Float[np.ndarray, "n 1"], *, seed: int = 0
) -> tuple[Float[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """The middle 95% of each of K ratios of sums over n texts; NaN where there are too few texts for an interval."""
    n, K = sums.shape
    if n < LEAST:
        return np.full(K, np.nan), np.full(K, np.nan)
    random = np.random.default_rng(seed)
    times = np.stack([np.bincount(random.integers(n, size=n), minlength=n) for _ in range(DRAWS)])  # (draws, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (times @ sums) / (times @ counts)  # (draws, K)
    low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0, method="nearest")
    return low, high
