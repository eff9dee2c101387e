"""Paired batches: teacher forcing, pairs of similar length, a budget of tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import Batch
from qkv.data.batches.paired import PairedData
from qkv.data.tokens.token_arrays import Pairs
from support.made_data import make_pairs, same_batch, unpadded_rows

START, END, PAD = 1, 2, 0
lengths_of_pairs = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40
)


def numbered(lengths: list[tuple[int, int]]) -> Pairs:
    """Pairs in which every token is 10 plus the number of the pair."""
    return make_pairs(
        [([10 + i] * source, [10 + i] * target) for i, (source, target) in enumerate(lengths)]
    )


def pairs_in(batch: Batch) -> list[int]:
    assert batch.source is not None
    return (batch.source[:, 0] - 10).tolist()


def test_inputs_and_targets() -> None:
    pairs = make_pairs([([5, 6, 7], [8]), ([5], [8, 9])])
    (batch,) = PairedData(pairs, START, END, PAD, budget=100).ordered()
    assert unpadded_rows(batch) == [
        ([START, 8, 9], [8, 9, END], [5, END]),
        ([START, 8], [8, END], [5, 6, 7, END]),
    ]
    assert batch.ids.tolist() == [[START, 8, 9], [START, 8, PAD]]
    assert batch.source is not None
    assert batch.source.tolist() == [[5, END, PAD, PAD], [5, 6, 7, END]]


@given(lengths_of_pairs, st.integers(10, 60), st.integers(0, 3))
def test_an_epoch_has_every_pair_once_within_the_budget(
    lengths: list, budget: int, epoch: int
) -> None:
    data = PairedData(numbered(lengths), START, END, PAD, budget)
    first = epoch * data.steps_per_epoch
    batches = [data.batch(step) for step in range(first, first + data.steps_per_epoch)]
    assert sorted(pair for batch in batches for pair in pairs_in(batch)) == list(
        range(len(lengths))
    )
    for batch in batches:
        assert batch.source is not None
        assert batch.rows * max(batch.source.shape[1], batch.ids.shape[1]) <= budget
    assert sum(batch.tokens for batch in batches) == sum(sum(pair) + 2 for pair in lengths)


@given(lengths_of_pairs, st.integers(1, 9))
def test_batches_have_a_fixed_number_of_rows(lengths: list, rows: int) -> None:
    data = PairedData(numbered(lengths), START, END, PAD, None, rows=rows)
    batches = [data.batch(step) for step in range(data.steps_per_epoch)]
    assert sorted(pair for batch in batches for pair in pairs_in(batch)) == list(
        range(len(lengths))
    )
    full, rest = divmod(len(lengths), rows)
    assert sorted(batch.rows for batch in batches) == ([rest] if rest else []) + [rows] * full


def test_either_a_budget_or_a_number_of_rows() -> None:
    for budget, rows in ((None, None), (8, 2)):
        with pytest.raises(ValueError, match=r"budget: .*either"):
            PairedData(numbered([(1, 1)]), START, END, PAD, budget, rows=rows)


@given(lengths_of_pairs, st.integers(10, 60))
def test_no_batch_has_room_for_the_next_ones_shortest(lengths: list, budget: int) -> None:
    batches = list(PairedData(numbered(lengths), START, END, PAD, budget).ordered())
    longest = [[max(lengths[pair]) + 1 for pair in pairs_in(batch)] for batch in batches]
    for batch_lengths, next_lengths in pairwise(longest):
        assert max(batch_lengths) <= min(next_lengths)
        assert (len(batch_lengths) + 1) * min(next_lengths) > budget


@given(lengths_of_pairs, st.integers(0, 60), st.integers(0, 3))
def test_a_step_is_the_same_computed_directly(lengths: list, step: int, seed: int) -> None:
    pairs = numbered(lengths)
    sequential = PairedData(pairs, START, END, PAD, 30, seed)
    for earlier in range(step):
        sequential.batch(earlier)
    assert same_batch(
        PairedData(pairs, START, END, PAD, 30, seed).batch(step), sequential.batch(step)
    )


def test_epochs_and_seeds_mix_pairs_of_equal_length_and_the_batches() -> None:
    pairs = numbered([(3, 3)] * 50 + [(6, 6)] * 50)
    orders = set()
    for seed in (0, 1):
        data = PairedData(pairs, START, END, PAD, 40, seed)
        for epoch in (0, 1):
            steps = range(epoch * data.steps_per_epoch, (epoch + 1) * data.steps_per_epoch)
            batches = [data.batch(step) for step in steps]
            assert len({batch.ids.shape[1] for batch in batches[:5]}) == 2  # not the shortest first
            orders.add(tuple(frozenset(pairs_in(batch)) for batch in batches))
    assert len(orders) == 4


def test_in_order_is_always_the_same() -> None:
    pairs = numbered([(1 + i % 7, 1 + i % 5) for i in range(40)])
    orders = [list(PairedData(pairs, START, END, PAD, 40, seed).ordered()) for seed in (0, 1)]
    assert all(same_batch(one, other) for one, other in zip(*orders, strict=True))
    assert sorted(pair for batch in orders[0] for pair in pairs_in(batch)) == list(range(40))


def test_pairs_that_are_too_long_are_left_out_and_counted() -> None:
    pairs = numbered([(3, 3), (12, 3), (3, 12), (4, 4), (20, 20)])
    assert PairedData(pairs, START, END, PAD, budget=21).left_out == 0
    assert PairedData(pairs, START, END, PAD, budget=20).left_out == 1
    data = PairedData(pairs, START, END, PAD, budget=100, context=5)
    assert data.left_out == 3
    assert sorted(pair for batch in data.ordered() for pair in pairs_in(batch)) == [0, 3]
    with pytest.raises(
        ValueError,
        match=r"pairs: .*shortest",
    ):
        PairedData(pairs, START, END, PAD, budget=3)


def test_the_parts_of_a_split_are_all_pairs_and_no_pair_twice() -> None:
    pairs = numbered([(1 + i % 7, 1 + i % 5) for i in range(40)])
    train, validation = pairs.split(0.25)
    assert (len(train), len(validation)) == (30, 10)
    numbers = [
        [int(part.source(i)[0]) - 10 for i in range(len(part))] for part in (train, validation)
    ]
    assert sorted(numbers[0] + numbers[1]) == list(range(40))
    assert max(numbers[0]) > min(numbers[1])  # drawn from everywhere
    for part, part_numbers in zip((train, validation), numbers, strict=True):
        assert part.source_lengths.tolist() == [1 + i % 7 for i in part_numbers]
        assert part.target_lengths.tolist() == [1 + i % 5 for i in part_numbers]
        assert all(
            np.array_equal(part.target(i), [10 + number] * (1 + number % 5))
            for i, number in enumerate(part_numbers)
        )
    both = [PairedData(part, START, END, PAD, 50) for part in (train, validation)]
    targets = torch.cat([batch.targets.flatten() for data in both for batch in data.ordered()])
    assert int((targets == END).sum()) == 40
    again = train.split(0.5)[1]
    assert {int(again.source(i)[0]) - 10 for i in range(len(again))} <= set(numbers[0])


def test_sides_of_different_number() -> None:
    pairs = numbered([(1, 1), (2, 2)])
    with pytest.raises(ValueError, match=r"pairs: .*sources"):
        Pairs(pairs.sources, numbered([(1, 1)]).targets)
