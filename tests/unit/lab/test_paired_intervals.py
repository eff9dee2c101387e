"""Intervals against scipy, and verdicts on planted effects and planted nulls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from scipy import stats

from qkv.lab import Check, mean_interval
from qkv.lab.paired_intervals import (
    Finding,
    Interval,
    interval_text,
    judge,
    number_text,
    overall,
    range_text,
    t_quantile,
)
from support.planted_experiment import results_of

REPETITIONS = 200
MOST_WRONG = 10
"""Of 200 nulls with a rate of 2.5%, more are wrong in 1.3% of all trials (binomial)."""
MORE = Check("there is an effect", lambda value: 0.0, relevant=0.01)
SAME = Check("there is none", lambda value: 0.0, relevant=1.0, expects="same")
NOT_WORSE = Check("hardly worse", lambda value: 0.0, relevant=0.05, expects="not worse")
Draw = Callable[[random.Random], float]


def normal(draw: random.Random) -> float:
    return draw.gauss(0, 1)


def accuracies(draw: random.Random) -> float:
    """The difference of two accuracies in 200 questions, which takes few values."""
    right = [sum(draw.random() < 0.97 for _ in range(200)) for _ in range(2)]
    return (right[0] - right[1]) / 200


def heavy_tails(draw: random.Random) -> float:
    """Student's t with 2 degrees of freedom: its variance is infinite."""
    return draw.gauss(0, 1) / math.sqrt(draw.expovariate(1))


def count(verdict: str, check: Check, draw_one: Draw, units: int, shift: float = 0.0) -> int:
    """How often the verdict is given in 200 simulated experiments."""
    draw = random.Random(18)
    found = 0
    for _ in range(REPETITIONS):
        effects = [shift + draw_one(draw) for _ in range(units)]
        found += judge(check, effects).verdict == verdict

    return found


@pytest.mark.parametrize("units", [3, 5, 10])
@pytest.mark.parametrize("draw", [normal, accuracies, heavy_tails])
def test_a_null_is_seldom_called_an_effect(draw: Draw, units: int) -> None:
    assert count("holds", MORE, draw, units) <= MOST_WRONG


@pytest.mark.parametrize("draw", [normal, heavy_tails])
def test_an_effect_at_the_margin_is_seldom_called_none(draw: Draw) -> None:
    """The true effect is as large as the relevant one: "same" holds in 2.5% at most."""
    assert count("holds", SAME, draw, 5, shift=1.0) <= MOST_WRONG


def test_a_reversed_effect_never_holds() -> None:
    assert count("holds", MORE, normal, 5, shift=-3.0) == 0
    assert count("does not hold", MORE, normal, 5, shift=-3.0) >= 195


def test_effects_of_three_deviations_are_found() -> None:
    assert count("holds", MORE, normal, 5, shift=3.0) >= 195


def test_a_small_effect_is_found_to_be_small() -> None:
    check = Check("there is none", lambda value: 0.0, relevant=4.0, expects="same")
    assert count("holds", check, normal, 5) >= 195
    assert count("does not hold", check, normal, 5, shift=9.0) >= 195


@pytest.mark.parametrize("units", [2, 3, 4, 5, 10, 31, 200])
def test_the_interval_is_that_of_scipy(units: int) -> None:
    draw = random.Random(units)
    values = [draw.gauss(3, 2) for _ in range(units)]
    mean, low, high, counted = mean_interval(values)
    expected = stats.t.interval(0.95, units - 1, stats.tmean(values), stats.sem(values))

    assert counted == units
    assert mean == pytest.approx(stats.tmean(values), rel=1e-12)
    assert (low, high) == pytest.approx(expected, rel=1e-9)
    assert t_quantile(units - 1) == pytest.approx(stats.t.ppf(0.975, units - 1), rel=1e-9)


def test_pairing_removes_what_the_arms_of_a_seed_share() -> None:
    """Seeds differ by 100 times the effect; the differences within seeds do not."""
    measured = {}
    for seed, level in enumerate([0.0, 500.0, -300.0, 900.0, 100.0]):
        measured["with", seed] = {"score": level + 5.0 + 0.1 * seed}
        measured["without", seed] = {"score": level}

    results = results_of(measured)
    (finding,) = results.findings
    assert finding.verdict == "holds"
    assert finding.effect.mean == pytest.approx(5.2)
    assert finding.effect.high - finding.effect.low < 0.5
    # Without pairing nothing could be told
    assert results.interval("with", "score").low < results.interval("without", "score").high


def test_the_verdict_depends_on_the_relevant_effect() -> None:
    tiny = [0.010, 0.011, 0.012]
    large = Check("", lambda value: 0.0, relevant=0.5)
    assert judge(MORE, tiny).verdict == "holds"
    assert judge(large, tiny).verdict == "does not hold"  # significant, but too small to matter
    assert judge(large, [0.1, 0.2, 0.9]).verdict == "cannot be told"
    assert judge(SAME, [0.1, -0.1, 0.2]).verdict == "holds"
    assert judge(SAME, [5.0, 5.1, 5.2]).verdict == "does not hold"
    assert judge(SAME, [-5.0, -5.1, -5.2]).verdict == "does not hold"
    assert judge(SAME, [0.9, 1.0, 1.1]).verdict == "cannot be told"


def test_what_is_worse_by_less_than_the_margin_is_not_worse() -> None:
    assert judge(NOT_WORSE, [0.044, 0.045, 0.046]).verdict == "holds"
    assert judge(NOT_WORSE, [0.0, 0.0, 0.0]).verdict == "holds"
    assert judge(NOT_WORSE, [-3.0, -3.1, -3.2]).verdict == "holds"  # better is not worse
    assert judge(NOT_WORSE, [0.054, 0.055, 0.056]).verdict == "does not hold"
    assert judge(NOT_WORSE, [0.03, 0.05, 0.07]).verdict == "cannot be told"
    assert judge(NOT_WORSE, [0.01, 0.01]).verdict == "cannot be told"
    assert "needs an interval below 0.05" in judge(NOT_WORSE, [0.01, 0.02, 0.03]).test


@pytest.mark.parametrize("draw", [normal, heavy_tails])
def test_what_is_worse_by_the_margin_is_seldom_called_not_worse(draw: Draw) -> None:
    check = Check("", lambda value: 0.0, relevant=1.0, expects="not worse")
    assert count("holds", check, draw, 5, shift=1.0) <= MOST_WRONG
    assert count("does not hold", check, draw, 5, shift=1.0) <= MOST_WRONG


def test_two_units_are_too_few_and_one_count_is_enough() -> None:
    assert judge(MORE, [1.0, 1.0]).verdict == "cannot be told"
    assert "a verdict needs 3" in judge(MORE, [1.0, 1.0]).test
    exact = Check("", lambda value: 0.0, relevant=1.0, exact=True)
    assert judge(exact, [3.0]).verdict == "holds"
    assert judge(exact, [-3.0]).verdict == "does not hold"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("holds", "holds"), "holds"),
        (("holds", "cannot be told"), "cannot be told"),
        (("cannot be told", "does not hold"), "does not hold"),
        ((), "cannot be told"),
    ],
)
def test_a_claim_holds_if_all_parts_hold(verdicts: tuple, expected: str) -> None:
    findings = []
    for verdict in verdicts:
        findings.append(Finding("", verdict, Interval(0, 0, 0, 3), 1.0, "more", False, ""))

    assert overall(findings) == expected


def test_no_number_has_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_numbers_have_sensible_digits() -> None:
    assert number_text(0.0) == "0"
    assert number_text(0.30000000000000004) == "0.3"
    assert number_text(1234567.0) == "1,234,567"
    assert number_text(12.34567, 3) == "12.3"
    assert number_text(1.5e-7, 3) == "1.50e-07"
    assert number_text(20.0, 2) == "20"
    assert interval_text(Interval(1.23456, 1.19, 1.279, 5)) == "1.235 ±0.044"
    assert interval_text(Interval(123.4, 100.0, 146.8, 5)) == "123 ±23"
    assert interval_text(Interval(1.0, -math.inf, math.inf, 1)) == "1"
    assert range_text(Interval(0.5, 0.25, 0.75, 3)) == "0.5 [0.25, 0.75]"
    assert range_text(Interval(0.5, 0.5, 0.5, 3)) == "0.5"
    assert range_text(Interval(0.5, -math.inf, math.inf, 1)) == "0.5"
