"""Smoothing and thinning of curves: a moving mean, and the extremes of a long curve."""

from __future__ import annotations

import numpy as np

from qkv.insight.render.figures.run_metrics import Numbers

BUCKETS = 2000  # a figure has no more columns of pixels to show
OUTLIER = 1e9  # values above are left out of a mean: a running sum would lose its precision


def smoothed(values: Numbers, part: float) -> Numbers:
    """Average around each value, with weights that fall to both sides; skip non-finite ones."""
    half = round(part * len(values) / 2)
    if half == 0:
        return values

    # A mean of means has the largest weight in the middle.
    return moving_mean(moving_mean(values, half), half)


def moving_mean(values: Numbers, half: int) -> Numbers:
    """The mean of up to `half` values on either side; NaN where none of them counts."""
    counted = np.abs(values) < OUTLIER
    sums = np.concatenate([[0.0], np.cumsum(np.where(counted, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(counted)])

    # A loss falls fast at first, so the window never reaches further ahead than back.
    index = np.arange(len(values))
    reach = np.minimum(half, index)
    begin = index - reach
    end = np.minimum(index + reach + 1, len(values))
    count = counts[end] - counts[begin]

    return np.where(count > 0, (sums[end] - sums[begin]) / np.maximum(count, 1), np.nan)


def thinned(x: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Reduce a long curve to the extremes of each stretch, which looks the same when drawn."""
    if len(values) <= 2 * BUCKETS:
        return x, values

    extremes: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), BUCKETS):
        finite = stretch[np.isfinite(values[stretch])]
        if len(finite):
            lowest = int(finite[values[finite].argmin()])
            highest = int(finite[values[finite].argmax()])
            extremes += sorted({lowest, highest})

    return x[extremes], values[extremes]
