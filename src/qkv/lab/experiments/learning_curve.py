"""The shape of a learning curve: smoothed, how sudden its rise is, and when it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def tenths(losses: Sequence[float]) -> dict[int, float]:
    """The mean loss of each tenth of the steps, by the number of steps done."""
    length = max(1, len(losses) // 10)
    curve = {}
    for first in range(0, len(losses), length):
        part = losses[first : first + length]
        curve[first + len(part)] = sum(part) / len(part)

    return curve


SMALLEST_RISE = 0.1
"""A curve that rises by less is noise."""


def steepest(curve: Mapping[int, float]) -> float:
    """The share of the whole rise that falls into the best fifth of the points, or 0."""
    values = list(curve.values())
    fifth = max(1, len(values) // 5)
    rises = [late - early for early, late in zip(values, values[fifth:], strict=False)]
    whole = max(values) - values[0]
    if whole < SMALLEST_RISE:
        return 0.0

    return max(rises) / whole


def half_way(curve: Mapping[int, float]) -> float:
    """The share of the training after which half of the rise is reached."""
    values = list(curve.values())
    middle = (max(values) + values[0]) / 2
    return min(step for step, value in curve.items() if value >= middle) / max(curve)
