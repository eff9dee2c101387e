"""The order of rows: every token once an epoch, any step without those before it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qkv.data.batches.order import TokenWindows, draws

sizes = st.integers(1, 9)


@given(
    length=st.integers(1, 200),
    size=sizes,
    rows=sizes,
    ahead=st.integers(0, 1),
    epoch=st.integers(0, 3),
)
def test_an_epoch_asks_for_every_position_once(
    length: int, size: int, rows: int, ahead: int, epoch: int
) -> None:
    assume(length >= 1 + ahead)
    windows = TokenWindows(length, size, rows, seed=3, ahead=ahead)
    numbers = range(epoch * windows.count, (epoch + 1) * windows.count)
    found = [windows.at(number // rows)[number % rows] for number in numbers]
    asked = [
        at for begin, seen in found for at in range(begin + seen, min(begin + size, length - ahead))
    ]
    assert sorted(asked) == list(range(length - ahead))
    assert all(begin + size + ahead <= length for begin, _ in found) or windows.count == 1, (
        "all rows are full"
    )
    assert all(seen < size for _, seen in found), "every row asks something"
    assert windows.count * size < length + 2 * size, "at most two rows more than there must be"
    assert windows.steps_per_epoch == -(-windows.count // rows)


@pytest.mark.parametrize("length", [103, 104, 109, 111])
def test_over_the_epochs_windows_begin_at_many_offsets(length: int) -> None:
    windows = TokenWindows(length, size=10, rows=1, seed=0, ahead=1)
    begins = {int(begin) % 10 for epoch in range(100) for begin, _ in windows.epoch(epoch)}
    assert len(begins) >= 5


@given(step=st.integers(0, 100), rows=sizes)
def test_a_step_does_not_depend_on_those_before(step: int, rows: int) -> None:
    walking = TokenWindows(100, size=6, rows=rows, seed=5)
    for earlier in range(step):
        walking.at(earlier)
    assert walking.at(step) == TokenWindows(100, size=6, rows=rows, seed=5).at(step)


def test_more_rows_a_step_are_the_same_rows_in_the_same_order() -> None:
    one, four = TokenWindows(1000, 6, rows=1, seed=5), TokenWindows(1000, 6, rows=4, seed=5)
    assert [window for step in range(40) for window in four.at(step)] == [
        one.at(n)[0] for n in range(160)
    ]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [
        TokenWindows(1000, 6, 1, seed).epoch(epoch).tobytes()
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_streams_are_independent() -> None:
    drawn = [
        draws(stream, seed, number).random()
        for stream in ("windows", "target_positions")
        for seed in (0, 1)
        for number in (0, 1)
    ]
    assert len(set(drawn)) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 1}, "tokens: expected 2 or more, not 1"),
        ({"size": 0}, "context: expected 1 or more, not 0"),
        ({"rows": 0}, "rows: expected 1 or more, not 0"),
        ({"seed": -1}, "seed: expected 0 or more, not -1"),
    ],
)
def test_windows_that_cannot_be(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenWindows(**{"length": 50, "size": 8, "rows": 2, "seed": 0, "ahead": 1} | change)


def test_a_step_before_the_first() -> None:
    with pytest.raises(ValueError, match="step: expected 0 or more, not -1"):
        TokenWindows(50, 8, 2, 0).at(-1)
