"""Labelled batches: every example once an epoch from any step, with little padding."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.labelled import LabelledData
from support.made_data import same_batch
from unit.data.batches.test_framing import TOKENIZER, example, frame


def numbered(lengths: list[int], rows: int, seed: int = 0) -> LabelledData:
    """Example i is one text of lengths[i] words with the class i."""
    framing = frame("classify")
    framed = framing.encode(TOKENIZER, [example(" ".join("a" * length)) for length in lengths])
    return LabelledData(framed, np.arange(len(lengths)), None, framing, rows, seed)


def classes_in(batch: Batch) -> list[int]:
    return batch.targets.flatten().tolist()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 5))
def test_every_example_once_an_epoch(lengths: list[int], rows: int, seed: int) -> None:
    data = numbered(lengths, rows, seed)
    assert data.steps_per_epoch == -(-len(lengths) // rows)
    for epoch in range(2):
        steps = range(epoch * data.steps_per_epoch, (epoch + 1) * data.steps_per_epoch)
        batches = [data.batch(step) for step in steps]
        assert sorted(chain.from_iterable(map(classes_in, batches))) == list(range(len(lengths)))
        assert all(batch.rows == rows for batch in batches[:-1])
    for batch in batches:
        assert [int(n) for n in (batch.ids == 10).sum(1) + (batch.ids == 20).sum(1)] == [
            lengths[i] for i in classes_in(batch)
        ]


def test_any_step_can_be_the_first() -> None:
    lengths = [1 + i * 7 % 13 for i in range(50)]
    whole = numbered(lengths, 8, seed=3)
    batches = [whole.batch(step) for step in range(20)]
    for step in (19, 0, 7, 13):
        assert same_batch(numbered(lengths, 8, seed=3).batch(step), batches[step])
    assert [classes_in(batch) for batch in batches[:7]] != [
        classes_in(batch) for batch in batches[7:14]
    ]
    assert classes_in(numbered(lengths, 8, seed=4).batch(0)) != classes_in(batches[0])


def test_examples_of_similar_length_share_a_batch() -> None:
    lengths = [1 + i * 37 % 60 for i in range(600)]
    data = numbered(lengths, 10)
    batches = [data.batch(step) for step in range(data.steps_per_epoch)]
    padded = sum(batch.ids.numel() for batch in batches)
    read = sum(batch.tokens for batch in batches)
    assert padded < 1.1 * read
    assert data.tokens_per_step == read // 60
    longest = [batch.ids.shape[1] for batch in batches]
    assert longest != sorted(longest)
    assert max(longest[:20]) > 40 > 20 > min(longest[:20])  # mixed


def test_all_in_order_and_back() -> None:
    lengths = [1 + i * 7 % 13 for i in range(50)]
    data = numbered(lengths, 3)
    batches = list(data.ordered())
    visited = list(chain.from_iterable(map(classes_in, batches)))
    assert visited == data.order.tolist()
    assert [lengths[i] for i in visited] == sorted(lengths)
    assert [batch.rows for batch in batches] == [12, 12, 12, 12, 2]


def test_numbers_and_tags_go_with_their_examples() -> None:
    framing = frame("tag")
    sentences = [["a"] * (1 + i % 4) for i in range(11)]
    framed = framing.encode(TOKENIZER, [example(*words) for words in sentences])
    tags = [[i * 10 + index for index in range(len(words))] for i, words in enumerate(sentences)]
    data = LabelledData(framed, tags, None, framing, 4)
    targets = [row[row != IGNORE].tolist() for step in range(3) for row in data.batch(step).targets]
    assert sorted(targets) == sorted(tags)
    framing = frame("regress")
    framed = framing.encode(TOKENIZER, [example("a" * (1 + i)) for i in range(9)])
    data = LabelledData(framed, None, [i / 2 for i in range(9)], framing, 2)
    for batch in data.ordered():
        assert batch.numbers is not None
        assert batch.target_positions is not None
        assert torch.equal(batch.numbers, (batch.target_positions - 2).double() / 2)


def test_wrong_arguments_are_refused() -> None:
    framing = frame("classify")
    framed = framing.encode(TOKENIZER, [example("a"), example("b")])
    for change, message in (
        ({"rows": 0}, r"^rows: expected 1 or more, not 0$"),
        ({"seed": -1}, r"^seed: expected 0 or more, not -1$"),
        ({"targets": [0]}, r"^targets: expected one for each of 2 examples, not 1$"),
        ({"numbers": [0.0]}, r"^numbers: expected one for each of 2 examples, not 1$"),
        ({"framed": framing.encode(TOKENIZER, [])}, r"^examples: expected 1 or more, not 0$"),
    ):
        arguments: dict[str, Any] = {
            "framed": framed,
            "targets": [0, 1],
            "numbers": None,
            "frame": framing,
            "rows": 2,
        }
        with pytest.raises(ValueError, match=message):
            LabelledData(**{**arguments, **change})
    with pytest.raises(ValueError, match=r"^step: expected 0 or more, not -1$"):
        LabelledData(framed, [0, 1], None, framing, 2).batch(-1)
