"""Bootstrap intervals against all possible resamples, closed forms, and each other."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from qkv.bootstrap import bootstrap, ratio_intervals


def test_the_ends_are_quantiles_of_all_resamples() -> None:
    """Four units have 256 resamples, whose quantiles many draws approach."""
    units = np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0], [9.0, 1.0]])
    means = [np.mean(units[list(rows), 0]) for rows in product(range(4), repeat=4)]
    low, high = bootstrap(units, lambda sums: sums[0] / sums[1], draws=20_000)
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.13)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.26)


def test_the_bootstrap_of_a_mean_is_near_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=2000)
    low, high = bootstrap(np.stack([values, np.ones(2000)], 1), lambda sums: sums[0] / sums[1])
    reach = 1.96 * values.std() / math.sqrt(2000)
    assert (low, high) == pytest.approx(
        (values.mean() - reach, values.mean() + reach), abs=0.15 * reach
    )


def test_the_same_seed_gives_the_same_interval() -> None:
    units = np.random.default_rng(0).random((30, 2))

    def interval(seed: int) -> object:
        return bootstrap(units, lambda sums: float(sums[0]), seed=seed)

    assert interval(5) == interval(5) != interval(6)


def test_many_ratios_at_once_have_the_intervals_of_each() -> None:
    random = np.random.default_rng(1)
    sums = random.normal(size=(9, 3))
    counts = random.integers(1, 5, size=(9, 1)).astype(np.float64)
    low, high = ratio_intervals(sums, counts, seed=7)
    for k in range(3):
        units = np.concatenate([sums[:, k : k + 1], counts], axis=1)
        assert (low[k], high[k]) == pytest.approx(
            bootstrap(units, lambda sums: sums[0] / sums[1], seed=7), rel=1e-12
        )

    assert np.isnan(ratio_intervals(sums[:3], counts[:3])[0]).all()
    assert bootstrap(sums[:3], lambda sums: 0.0) == (None, None)


def test_known_intervals_do_not_change() -> None:
    """The intervals of published scores stay the same when the code changes."""
    units = np.stack([np.arange(12.0) ** 2 % 7, np.arange(12.0) % 3 + 1], axis=1)
    assert bootstrap(units, lambda sums: sums[0] / sums[1], seed=3) == pytest.approx(
        (0.6, 15 / 11), rel=1e-12
    )
    low, high = ratio_intervals(units[:, :1], units[:, 1:])
    assert (low[0], high[0]) == pytest.approx((0.6, 18 / 13), rel=1e-12)


def test_resamples_with_a_zero_denominator_are_left_out() -> None:
    counts = np.array([[1.0], [0.0], [0.0], [0.0], [0.0]])
    low, high = ratio_intervals(np.array([[0.5], [0.0], [0.0], [0.0], [0.0]]), counts)
    assert (low[0], high[0]) == (0.5, 0.5)


@pytest.mark.usefixtures("without_shape_checks")
def test_an_empty_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^units: expected shape"):
        bootstrap(np.zeros((0, 2)), lambda sums: 0.0)
