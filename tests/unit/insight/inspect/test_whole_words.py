"""Attention to a word is summed over its pieces; attention from a word is averaged."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from qkv.insight.inspect.whole_words import WholeWord, join_words

ROWS = [WholeWord("un", [0, 1]), WholeWord("b", [2]), WholeWord("c", [3, 4, 5])]
COLUMNS = [WholeWord("x", [0]), WholeWord("y", [1, 2, 3])]


def test_pieces_are_joined_as_the_definition_says() -> None:
    weights = torch.rand(2, 3, 6, 4, dtype=torch.float64).softmax(-1)
    result = join_words(weights, ROWS, COLUMNS)
    assert result.shape == (2, 3, 3, 2)
    for w, row in enumerate(ROWS):
        for x, column in enumerate(COLUMNS):
            total = sum(weights[..., t, s] for t in row.positions for s in column.positions)
            assert_close(result[..., w, x], total / len(row.positions))
    assert_close(result.sum(-1), torch.ones(2, 3, 3, dtype=torch.float64))


def test_rows_or_columns_alone() -> None:
    weights = torch.rand(6, 4)
    single = [WholeWord(str(position), [position]) for position in range(6)]
    summed = join_words(weights, single, COLUMNS)
    assert_close(summed, torch.stack([weights[:, 0], weights[:, 1:].sum(1)], dim=1))
    assert_close(join_words(weights, ROWS, single[:4])[2], weights[3:].mean(0))


def test_words_of_one_piece_change_nothing() -> None:
    weights = torch.rand(5, 5)
    single = [WholeWord(str(position), [position]) for position in range(5)]
    assert_close(join_words(weights, single, single), weights)
