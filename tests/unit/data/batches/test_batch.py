"""A batch and its parts: nothing lost, nothing added, counts that survive a move."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import Batch
from qkv.data.batches.causal import CausalData
from qkv.data.batches.paired import PairedData
from support.made_data import made_pairs, made_tokens, rows_of, same


def paired(lengths: list[tuple[int, int]]) -> Batch:
    """One batch of all these pairs."""
    pairs = made_pairs([([5] * source, [6] * target) for source, target in lengths])
    (batch,) = PairedData(pairs, start=1, end=2, padding=0, budget=10_000).ordered()
    return batch


@given(rows=st.integers(1, 12), parts=st.integers(1, 15), across=st.booleans())
def test_the_parts_of_packed_rows_are_the_whole(rows: int, parts: int, across: bool) -> None:
    tokens = made_tokens(list(range(100)), ends=[3, 10, 11, 40, 100])
    whole = CausalData(tokens, context=8, rows=rows, across_documents=across).batch(1)
    split = whole.split(parts)
    assert len(split) == min(parts, rows)
    assert max(part.rows for part in split) - min(part.rows for part in split) <= 1
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in split])
        for field in fields(Batch)
        if isinstance(getattr(whole, field.name), torch.Tensor)
    }
    assert same(Batch(**joined), whole)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 14),
)
def test_the_parts_of_pairs_are_the_whole_without_padding_of_their_own(
    lengths: list, parts: int
) -> None:
    whole = paired(lengths)
    split = whole.split(parts)
    assert [row for part in split for row in rows_of(part)] == rows_of(whole)
    assert (
        sum(part.count for part in split) == whole.count == sum(target + 1 for _, target in lengths)
    )
    assert (
        sum(part.tokens for part in split) == whole.tokens == sum(sum(pair) + 2 for pair in lengths)
    )
    for part in split:
        assert part.source is not None
        sources, targets = zip(
            *[(len(source), len(ids)) for ids, _, source in rows_of(part)], strict=True
        )
        assert part.source.shape[1] == max(sources)
        assert part.ids.shape[1] == part.targets.shape[1] == max(targets)
        assert (part.padding_mask is None) == (len(set(targets)) == 1)
        assert (part.source_padding_mask is None) == (len(set(sources)) == 1)


@given(ranks=st.integers(1, 4), micro=st.integers(1, 4))
def test_the_rows_are_the_same_for_any_ranks_and_micro_batches(ranks: int, micro: int) -> None:
    whole = paired([(1 + i % 7, 1 + i % 5) for i in range(16)])
    rows = [
        row for mine in whole.split(ranks) for part in mine.split(micro) for row in rows_of(part)
    ]
    assert rows == rows_of(whole)


def test_counts_are_taken_before_a_move() -> None:
    batch = paired([(3, 2), (1, 5)])
    moved = batch.to("meta")  # a device on which nothing can be counted
    assert moved.ids.device.type == "meta"
    assert (moved.count, moved.tokens) == (3 + 6, 4 + 3 + 2 + 6)
    assert same(batch.to("cpu"), batch)


@pytest.mark.gpu
def test_a_pinned_batch_arrives_whole() -> None:
    batch = paired([(3, 2), (1, 5)])
    pinned = batch.pin()
    assert pinned.ids.is_pinned()
    assert same(pinned.to("cuda").to("cpu"), batch)


def test_no_parts() -> None:
    with pytest.raises(ValueError, match="parts: expected 1 or more, not 0"):
        paired([(1, 1)]).split(0)
