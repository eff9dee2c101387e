"""Token arrays: spans and texts read together equal those read one by one, in any shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.tokens.token_arrays import Pairs, Tokens

LENGTHS = (3, 1, 4, 2, 5)


def tokens(*borders: int, begin: int = 0, end: int | None = None) -> Tokens:
    """The ids 100 to 114, of five texts, cut into shards at the borders."""
    ids = np.arange(100, 115, dtype=np.uint16)
    return Tokens(np.split(ids, borders), np.cumsum(LENGTHS), "same", begin, end)


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8)


@pytest.mark.parametrize("borders", [(), (4,), (1, 4, 4, 11)])
@given(spans)
def test_spans_are_those_of_single_reads(borders: tuple[int, ...], ends: list) -> None:
    part = tokens(*borders, begin=2, end=14)
    starts = np.array([min(pair) for pair in ends], dtype=np.int64)
    lengths = np.array([abs(a - b) for a, b in ends], dtype=np.int64)
    expected = [part.read(min(pair), max(pair)) for pair in ends]
    found = part.read_spans(starts, lengths)
    assert found.dtype == np.int64
    assert found.tolist() == np.concatenate([np.empty(0, np.int64), *expected]).tolist()


def test_spans_beyond_the_part_are_refused() -> None:
    part = tokens(4, begin=2, end=10)
    for start in (-1, 7):
        with pytest.raises(IndexError, match=r"of 8"):
            part.read_spans(np.array([0, start]), np.array([1, 2]))


@pytest.mark.parametrize("chosen", [None, np.array([4, 0, 2])])
def test_texts_are_those_of_single_reads(chosen: np.ndarray | None) -> None:
    pairs = Pairs(tokens(4, 9), tokens(), chosen)
    numbers = np.array([2, 0, 1])
    ids, lengths = pairs.texts(pairs.sources, numbers)
    expected = [pairs.source(number) for number in numbers.tolist()]
    assert lengths.tolist() == list(map(len, expected))
    assert ids.tolist() == np.concatenate(expected).tolist()
