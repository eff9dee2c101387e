"""Confidence intervals against closed forms, published values and exact coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qkv.bootstrap import LEAST
from qkv.evaluation.intervals import Score, accuracy, perplexity, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_newcombe_1998(successes: int, trials: int, low: float, high: float) -> None:
    """Method 3 in Newcombe's comparison of seven methods, Statistics in Medicine 17."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(3, 10), (50, 100), (199, 200), (1, 1)])
def test_the_ends_solve_the_score_test(successes: int, trials: int) -> None:
    """At each end p the observed proportion is 1.96 standard deviations of p away."""
    for p in wilson(successes, trials):
        if 0 < p < 1:
            assert abs(successes / trials - p) == pytest.approx(
                1.959964 * math.sqrt(p * (1 - p) / trials), rel=1e-5
            )


def test_wilson_covers_the_truth_in_95_percent() -> None:
    """Every outcome of 50 trials, weighted by its probability, for many true proportions."""
    n = 50
    covered: list[float] = []
    for p in np.linspace(0.05, 0.95, 91):
        probabilities = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        covered.append(
            sum(c for k, c in enumerate(probabilities) if wilson(k, n)[0] <= p <= wilson(k, n)[1])
        )
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)
    assert min(covered) > 0.9


def test_no_and_all_successes_stay_within_0_and_1() -> None:
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    assert accuracy([True, False, True, True]) == Score(
        "accuracy", 0.75, *wilson(3, 4), percent=True
    )


def test_perplexity_weights_units_by_their_tokens() -> None:
    score = perplexity(
        [[math.log(0.5)] * 3, [math.log(0.25)], [math.log(0.5)] * 2, [math.log(0.25)] * 2]
    )
    assert score.value == pytest.approx((2**5 * 4**3) ** (1 / 8))
    assert score.low is not None
    assert score.high is not None
    assert score.low < score.value < score.high
    assert not score.higher_is_better
    assert perplexity([[-1e6], [-1e6]]).value == math.inf


@pytest.mark.parametrize("units", [1, 2, 3])
def test_few_units_have_no_interval(units: int) -> None:
    """With up to three units the interval would only show the units' extremes."""
    score = perplexity([[-float(unit + 1)] for unit in range(units)])
    assert (score.low, score.high) == (None, None)
    assert units**-units > 0.025  # the probability that only the worst unit is drawn
    assert LEAST**-LEAST < 0.025


@pytest.mark.usefixtures("without_shape_checks")
def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^successes: expected 0 to 3.*not 4$"):
        wilson(4, 3)
