"""The sampling parameters of a row as the sampling kernels read them, in float32."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.generation.kernels.sampling_kernel import LARGEST, RowFilters

Values = tuple[float, int | None, float | None, float | None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, None, None, None), False),
        ((1.0, None, 1.0, 0.0), False),
        ((1.0, 5, None, None), True),
        ((1.0, None, 0.9, None), True),
        ((1.0, None, None, 0.1), True),
        ((0.0, 5, 0.9, 0.1), False),
    ],
)
def test_filters_leave_out_tokens_only_when_sampling(values: Values, expected: bool) -> None:
    """Without them the kernel that collects candidates is not launched."""
    assert RowFilters.create(*values).leaves_out is expected


def test_values_stay_within_float32() -> None:
    filters = RowFilters.create(1e-300, 10**9, 1 - 1e-12, None)

    assert np.float32(filters.temperature) > 0
    assert np.float32(1 / filters.temperature) < np.inf
    assert np.float32(filters.top_k) == LARGEST
    assert np.float32(filters.top_p) < 1
