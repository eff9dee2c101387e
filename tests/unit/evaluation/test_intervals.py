"""Intervals against closed forms, published values, and every possible outcome counted."""

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
    """Method 3 in the table of Newcombe's comparison of seven methods, Statistics in Medicine 17."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(3, 10), (50, 100), (199, 200), (1, 1)])
def test_the_ends_are_where_the_score_test_turns(successes: int, trials: int) -> None:
    """At each end p, what was found is 1.96 deviations of p away: the equation that Wilson solved."""
    for p in wilson(successes, trials):
        if 0 < p < 1:
            assert abs(successes / trials - p) == pytest.approx(
                1.959964 * math.sqrt(p * (1 - p) / trials), rel=1e-5
            )


def test_wilson_holds_the_truth_95_times_in_100() -> None:
    """Every outcome of 50 trials, weighted by its probability, for many true proportions."""
    n, covered = 50, []
    for p in np.linspace(0.05, 0.95, 91):
        chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        covered.append(
            sum(c for k, c in enumerate(chances) if wilson(k, n)[0] <= p <= wilson(k, n)[1])
        )
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)
    assert min(covered) > 0.9


def test_nothing_right_and_all_right_stay_within_0_and_1() -> None:
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    assert accuracy([True, False, True, True]) == Score(
        "accuracy", 0.75, *wilson(3, 4), percent=True
    )


def test_perplexity_weighs_units_by_their_words() -> None:
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
    """One would have the interval of nothing, two and three that of their own extremes."""
    score = perplexity([[-float(unit + 1)] for unit in range(units)])
    assert (score.low, score.high) == (None, None)
    assert units**-units > 0.025  # so often the worst one alone is drawn
    assert LEAST**-LEAST < 0.025


@pytest.mark.usefixtures("without_shape_checks")
def test_faults_are_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^successes: expected 0 to 3 of 1 trial or more, not 4$"):
        wilson(4, 3)
