"""A batch and its parts: the parts are the whole, and counts survive a move."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import Batch
from qkv.data.batches.causal import CausalData
from qkv.data.batches.paired import PairedData
from support.made_data import make_pairs, make_tokens, same_batch, unpadded_rows


def paired(lengths: list[tuple[int, int]]) -> Batch:
    """One batch of all these pairs."""
    pairs = make_pairs([([5] * source, [6] * target) for source, target in lengths])
    (batch,) = PairedData(pairs, start=1, end=2, padding=0, budget=10_000).ordered()
    return batch


@given(rows=st.integers(1, 12), parts=st.integers(1, 15), across=st.booleans())
def test_the_parts_of_packed_rows_are_the_whole(rows: int, parts: int, across: bool) -> None:
    tokens = make_tokens(list(range(100)), ends=[3, 10, 11, 40, 100])
    whole = CausalData(tokens, context=8, rows=rows, across_documents=across).batch(1)
    split = whole.split(parts)
    assert len(split) == min(parts, rows)
    assert max(part.rows for part in split) - min(part.rows for part in split) <= 1
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in split])
        for field in fields(Batch)
        if isinstance(getattr(whole, field.name), torch.Tensor)
    }
    assert same_batch(Batch(**joined), whole)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 14),
)
def test_the_parts_of_pairs_are_the_whole_without_padding_of_their_own(
    lengths: list, parts: int
) -> None:
    whole = paired(lengths)
    split = whole.split(parts)
    assert [row for part in split for row in unpadded_rows(part)] == unpadded_rows(whole)
    assert (
        sum(part.count for part in split) == whole.count == sum(target + 1 for _, target in lengths)
    )
    assert (
        sum(part.tokens for part in split) == whole.tokens == sum(sum(pair) + 2 for pair in lengths)
    )
    for part in split:
        assert part.source is not None
        sources, targets = zip(
            *[(len(source), len(ids)) for ids, _, source in unpadded_rows(part)], strict=True
        )
        assert part.source.shape[1] == max(sources)
        assert part.ids.shape[1] == part.targets.shape[1] == max(targets)
        assert (part.padding_mask is None) == (len(set(targets)) == 1)
        assert (part.source_padding_mask is None) == (len(set(sources)) == 1)


@given(ranks=st.integers(1, 4), micro=st.integers(1, 4))
def test_the_rows_are_the_same_for_any_ranks_and_micro_batches(ranks: int, micro: int) -> None:
    whole = paired([(1 + i % 7, 1 + i % 5) for i in range(16)])
    rows = [
        row
        for share in whole.split(ranks)
        for part in share.split(micro)
        for row in unpadded_rows(part)
    ]
    assert rows == unpadded_rows(whole)


def test_counts_are_taken_before_a_move() -> None:
    batch = paired([(3, 2), (1, 5)])
    moved = batch.to("meta")  # a device without values
    assert moved.ids.device.type == "meta"
    assert (moved.count, moved.tokens) == (3 + 6, 4 + 3 + 2 + 6)
    assert same_batch(batch.to("cpu"), batch)


@pytest.mark.gpu
def test_a_pinned_batch_arrives_whole() -> None:
    batch = paired([(3, 2), (1, 5)])
    pinned = batch.pin()
    assert pinned.ids.is_pinned()
    assert same_batch(pinned.to("cuda").to("cpu"), batch)


def test_zero_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="parts: expected 1 or more, not 0"):
        paired([(1, 1)]).split(0)
