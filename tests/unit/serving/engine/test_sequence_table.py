"""The table of running sequences: which tokens are only collected, and which need more."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.generation.kernels.sampling_kernel import RowFilters
from qkv.generation.sampling import UniformNumbers
from qkv.generation.sampling_params import BROKEN
from qkv.serving.engine.sequence_table import (
    BUFFERED,
    CATCH_UP_EVERY,
    UNIFORMS,
    RowSettings,
    SequenceTable,
)

DRAWN = RowFilters.create(1.0, None, None, None)
GREEDY = RowFilters.create(0, None, None, None)


def settings(seed: int = 0, **fields: Any) -> RowSettings:
    usual: dict[str, Any] = {
        "max_new_tokens": 1000,
        "end_ids": (),
        "filters": DRAWN,
        "uniforms": UniformNumbers(seed).between,
        "samples_logits": True,
        "collects": True,
        "streams": False,
        "ablated": False,
    }
    return RowSettings(**usual | fields)


def receive(table: SequenceTable, token_ids: list[int]) -> tuple[list[int], list[int]]:
    """The rows that stream, and the rows that need more than to be collected."""
    slots = np.arange(len(token_ids))
    received = table.receive(slots, table.owner[slots], np.array(token_ids))
    return received.streaming.tolist(), received.others.tolist()


def test_rows_that_only_collect_are_left_alone() -> None:
    table = SequenceTable(7)
    table.join(0, 0, 0, settings())
    table.join(1, 0, 0, settings(end_ids=(4, 5)))
    table.join(2, 0, 0, settings(max_new_tokens=2))
    table.join(3, 0, 0, settings(streams=True))
    table.join(4, 0, 0, settings(collects=False))
    table.join(5, 0, 0, settings(end_ids=(1, 2, 3, 4, 5)))  # more than a row has columns for
    table.join(6, 0, 0, settings())

    assert receive(table, [4, 3, 4, 4, 4, 9, BROKEN]) == ([3], [4, 5, 6])
    assert receive(table, [7, 5, 6, 8, 4, 9, 1]) == ([3], [1, 2, 4, 5])
    assert table.take_tokens(0) == [4, 7]
    assert table.take_tokens(1) == [3]
    assert table.take_tokens(2) == [4]
    assert table.take_tokens(3) == [4, 8]
    assert table.take_tokens(0) == []


def test_uniform_numbers_after_a_step_that_asked_for_none() -> None:
    """A step without the graph advances the row; its next numbers are still those of its tokens."""
    table = SequenceTable(1)
    table.join(0, 0, 0, settings(seed=5))
    slots = np.array([0])
    numbers = UniformNumbers(5)
    for position in range(2 * UNIFORMS + 3):
        if position not in (UNIFORMS, 2 * UNIFORMS):
            assert table.next_uniforms(slots).tolist() == [numbers[position]]

        table.advance(slots)


def test_a_full_row_is_handled_by_itself() -> None:
    table = SequenceTable(1)
    table.join(0, 0, 0, settings())
    for token in range(BUFFERED):
        assert receive(table, [token]) == ([], [])

    assert receive(table, [99]) == ([], [0])
    assert table.take_tokens(0) == list(range(BUFFERED))


def test_rows_catch_up_in_turns() -> None:
    """Each row once in CATCH_UP_EVERY tokens, and not all rows in the same step."""
    rows = 2 * CATCH_UP_EVERY
    table = SequenceTable(rows)
    for slot in range(rows):
        table.join(slot, 0, 0, settings(max_new_tokens=1000))

    slots = np.arange(rows)
    last_turn = np.zeros(rows, dtype=np.int64)
    for token in range(1, BUFFERED + 1):
        received = table.receive(slots, table.owner, np.full(rows, token))
        assert received.collected == rows
        assert received.due.size == rows // CATCH_UP_EVERY
        assert (token - last_turn[received.due] <= CATCH_UP_EVERY).all()
        last_turn[received.due] = token

    assert (BUFFERED - last_turn < CATCH_UP_EVERY).all()


def test_tokens_for_the_last_owner_of_a_slot_are_dropped() -> None:
    table = SequenceTable(2)
    table.join(0, 0, 0, settings())
    table.join(1, 0, 0, settings())
    owner = table.owner.copy()
    table.leave(0)
    table.join(0, 0, 0, settings())
    received = table.receive(np.arange(2), owner, np.array([7, 8]))
    assert received.collected == 1
    assert not received.others.size
    assert table.take_tokens(0) == []
    assert table.take_tokens(1) == [8]


def test_uniform_numbers_are_those_of_the_seed() -> None:
    """Also past the end of a row of them, and for a sequence that comes back."""
    table = SequenceTable(3)
    table.join(0, 0, 0, settings(seed=5))
    table.join(1, 0, 0, settings(filters=GREEDY))
    table.join(2, 0, 70, settings(seed=6))
    slots = np.array([2, 1, 0])
    drawn = []
    for _ in range(200):
        drawn.append(table.next_uniforms(slots))
        assert np.array_equal(table.next_uniforms(slots), drawn[-1])  # a repeated step
        table.advance(slots)

    numbers = np.array(drawn)
    assert numbers[:, 2].tolist() == UniformNumbers(5).between(0, 200)
    assert numbers[:, 0].tolist() == UniformNumbers(6).between(70, 270)


def test_rows_without_room_need_a_block() -> None:
    table = SequenceTable(2)
    table.join(0, 15, 0, settings())
    table.join(1, 16, 0, settings())
    table.hold_blocks(0, [8])
    table.hold_blocks(1, [3])
    slots = np.arange(2)
    assert table.without_room(slots).tolist() == [1]
    table.hold_blocks(1, [3, 9])
    assert table.without_room(slots).tolist() == []
    assert table.slot_mapping(slots).tolist() == [8 * 16 + 15, 9 * 16]
