"""Pearson correlation and mean error are exact for numbers of any scale and offset."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.evaluation.label_scores import mean_error, pearson


@pytest.mark.parametrize(("offset", "size"), [(0.0, 1e-7), (1.7e9, 3.0), (0.0, 1.0), (-5.0, 1e8)])
def test_numbers_of_any_size_anywhere(offset: float, size: float) -> None:
    draw = np.random.default_rng(0)
    y = draw.normal(size=40)
    x = y + draw.normal(size=40)
    score = pearson(offset + size * x, offset + size * y)
    assert score.value == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    assert score.low is not None
    assert score.high is not None
    assert score.low < score.value < score.high
    assert pearson(offset + size * x, offset + size * x).value == pytest.approx(1.0)
    assert pearson(np.full(40, offset + 0.1 * size), offset + size * y).value == 0.0, (
        "constant predictions"
    )
    assert mean_error(offset + size * x, offset + size * y).value == pytest.approx(
        size * np.abs(x - y).mean(), rel=1e-6
    )
