"""Learning rate schedules against their formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from qkv.training.run_config import OptimizerConfig
from qkv.training.schedule import highest_rate, learning_rate, warmup_steps

STEPS = 1000


def rates(
    schedule: str, steps: int = STEPS, highest: float = 2.0, **fields: float | None
) -> list[float]:
    config = OptimizerConfig(schedule=schedule, **{"warmup": 100, **fields})
    return [learning_rate(config, step, steps, highest) for step in range(steps)]


def test_the_papers_inverse_square_root() -> None:
    """lrate = width^-0.5 min(step^-0.5, step warmup^-1.5), its steps counted from 1."""
    width, warmup, steps = 512, 400, 10_000
    config = OptimizerConfig(schedule="inverse-sqrt", warmup=warmup)
    highest = highest_rate(config, width, steps)
    for step in (1, 2, 37, 399, 400, 401, 5000, 10_000):
        expected = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(config, step - 1, steps, highest) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "stable", "constant"])
def test_linear_warm_up_and_then_never_up_again(schedule: str) -> None:
    values = rates(schedule)
    assert values[:100] == pytest.approx([2.0 * (step + 1) / 100 for step in range(100)])
    assert max(values) == pytest.approx(2.0)
    assert all(one >= next_one for one, next_one in pairwise(values[99:]))
    assert min(values) > 0


def test_cosine() -> None:
    values = rates("cosine", final_rate=0.1)
    assert values[-1] == pytest.approx(0.2)
    assert values[99 + 450] == pytest.approx((2.0 + 0.2) / 2), "half way between"
    for step in (100, 300, 800):
        done = (step - 99) / 900
        assert values[step] == pytest.approx(0.2 + 1.8 * (1 + math.cos(math.pi * done)) / 2)


def test_linear() -> None:
    values = rates("linear", final_rate=0.0)
    falls = [rate - following for rate, following in pairwise(values[99:])]
    assert falls == pytest.approx([2.0 / 900] * 900)
    assert values[-1] == pytest.approx(0.0, abs=1e-12)


def test_stable_then_decay() -> None:
    values = rates("stable", decay=0.2, final_rate=0.5)
    assert values[99:800] == [2.0] * 701
    assert values[-1] == pytest.approx(1.0)
    assert values[899] == pytest.approx(1.5)


def test_constant() -> None:
    assert rates("constant")[99:] == [2.0] * 901


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "stable", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_short_runs_warm_up_in_a_tenth_and_have_rates_above_zero(schedule: str, steps: int) -> None:
    values = rates(schedule, steps, warmup=None)
    assert values[0] == 2.0 or steps == 1
    assert all(0 < rate <= 2.0 for rate in values)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "stable", "constant"])
def test_a_chosen_warm_up_is_used(schedule: str) -> None:
    values = rates(schedule, 10_000, warmup=4000)
    assert values[:4000] == pytest.approx([2.0 * (step + 1) / 4000 for step in range(4000)])
    assert max(values) == values[3999] == 2.0
    assert rates(schedule, 100, warmup=400) == pytest.approx(
        [2.0 * (step + 1) / 400 for step in range(100)]
    )
    assert rates(schedule, 10, warmup=0)[0] == 2.0


def test_the_default_warm_up_is_at_most_a_tenth_of_the_steps() -> None:
    usual = OptimizerConfig()
    expected = {5: 1, 50: 5, 400: 40, 1000: 100, 10_000: 100}
    for steps, warmup in expected.items():
        assert warmup_steps(usual, steps) == warmup

    assert [warmup_steps(usual, steps, 500) for steps in (400, 10_000)] == [40, 500]


def test_the_highest_rate() -> None:
    assert highest_rate(OptimizerConfig(learning_rate=0.7), 512, STEPS) == 0.7
    assert highest_rate(OptimizerConfig(), 768, STEPS) == pytest.approx(6e-4)
    assert highest_rate(OptimizerConfig(), 192, STEPS) == pytest.approx(1.2e-3)
