"""Streams: each row of a batch reads on where it ended in the batch before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.streams import StreamedData
from support.made_data import make_tokens

sizes = {"context": st.integers(1, 7), "rows": st.integers(1, 4), "seed": st.integers(0, 5)}


@given(epoch=st.integers(0, 3), **sizes)
def test_rows_continue_and_cover_an_epoch_once(
    epoch: int, context: int, rows: int, seed: int
) -> None:
    data = StreamedData(make_tokens(list(range(60))), context, rows, seed)
    first = epoch * data.steps_per_epoch
    batches = [data.batch(first + number) for number in range(data.steps_per_epoch)]

    text = torch.cat([batch.ids for batch in batches], dim=1).flatten()
    assert torch.equal(text, text[0] + torch.arange(len(text)))  # the text counts upwards
    assert 59 - len(text) < rows * context  # what is left out is less than a step
    for number, batch in enumerate(batches):
        assert torch.equal(batch.targets, batch.ids + 1)
        assert batch.segment == number
        assert batch.first_stream == 0


def test_what_is_left_out_changes_from_epoch_to_epoch() -> None:
    data = StreamedData(make_tokens(list(range(60))), 10, 2)
    begins = {int(data.batch(epoch * data.steps_per_epoch).ids[0, 0]) for epoch in range(300)}
    assert begins == set(range(20))


def test_a_part_of_a_batch_knows_its_streams() -> None:
    batch = StreamedData(make_tokens(list(range(60))), 4, 5).batch(1)
    parts = batch.split(2)
    assert [part.first_stream for part in parts] == [0, 2]
    assert [part.segment for part in parts] == [1, 1]
    assert torch.equal(parts[1].ids, batch.ids[2:])
    assert parts[1].split(3)[2].first_stream == 4


def test_too_little_data_is_refused() -> None:
    with pytest.raises(ValueError, match="carry_memory: 60 tokens do not fill 4 streams"):
        StreamedData(make_tokens(list(range(60))), 16, 4)
