"""The order of the data: every token once an epoch, and a pure function of (seed, step)."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qkv.data.batches.order import TokenWindows, random_generator

sizes = st.integers(1, 9)


@given(
    length=st.integers(1, 200),
    size=sizes,
    rows=sizes,
    ahead=st.integers(0, 1),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_position_as_a_target_once(
    length: int, size: int, rows: int, ahead: int, epoch: int
) -> None:
    assume(length >= 1 + ahead)
    windows = TokenWindows(length, size, rows, seed=3, ahead=ahead)
    numbers = range(epoch * windows.count, (epoch + 1) * windows.count)
    rows_of_epoch = [windows.at(number // rows)[number % rows] for number in numbers]
    targets = [
        position
        for begin, overlap in rows_of_epoch
        for position in range(begin + overlap, min(begin + size, length - ahead))
    ]
    assert sorted(targets) == list(range(length - ahead))
    assert (
        all(begin + size + ahead <= length for begin, _ in rows_of_epoch) or windows.count == 1
    ), "all rows are full"
    assert all(overlap < size for _, overlap in rows_of_epoch), "every row has targets"
    assert windows.count * size < length + 2 * size, "at most two rows more than necessary"
    assert windows.steps_per_epoch == -(-windows.count // rows)


@pytest.mark.parametrize("length", [103, 104, 109, 111])
def test_over_the_epochs_windows_begin_at_many_offsets(length: int) -> None:
    windows = TokenWindows(length, size=10, rows=1, seed=0, ahead=1)
    begins = {int(begin) % 10 for epoch in range(100) for begin, _ in windows.epoch(epoch)}
    assert len(begins) >= 5


@given(step=st.integers(0, 100), rows=sizes)
def test_a_step_does_not_depend_on_those_before(step: int, rows: int) -> None:
    sequential = TokenWindows(100, size=6, rows=rows, seed=5)
    for earlier in range(step):
        sequential.at(earlier)
    assert sequential.at(step) == TokenWindows(100, size=6, rows=rows, seed=5).at(step)


def test_more_rows_a_step_are_the_same_rows_in_the_same_order() -> None:
    one, four = TokenWindows(1000, 6, rows=1, seed=5), TokenWindows(1000, 6, rows=4, seed=5)
    assert [window for step in range(40) for window in four.at(step)] == [
        one.at(n)[0] for n in range(160)
    ]


def test_seeds_and_epochs_have_different_orders() -> None:
    orders = [
        TokenWindows(1000, 6, 1, seed).epoch(epoch).tobytes()
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_streams_are_independent() -> None:
    numbers = [
        random_generator(stream, seed, number).random()
        for stream in ("windows", "masked positions")
        for seed in (0, 1)
        for number in (0, 1)
    ]
    assert len(set(numbers)) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 1}, "tokens: expected 2 or more, not 1"),
        ({"size": 0}, "context: expected 1 or more, not 0"),
        ({"rows": 0}, "rows: expected 1 or more, not 0"),
        ({"seed": -1}, "seed: expected 0 or more, not -1"),
    ],
)
def test_impossible_windows_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenWindows(**{"length": 50, "size": 8, "rows": 2, "seed": 0, "ahead": 1} | change)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="step: expected 0 or more, not -1"):
        TokenWindows(50, 8, 2, 0).at(-1)
