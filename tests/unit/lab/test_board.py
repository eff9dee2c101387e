"""The tables of the board equal the equations."""

from __future__ import annotations

import io
import math
from functools import cache

import torch
from rich.console import Console

from qkv.lab import board


@cache
def printed() -> str:
    console = Console(file=io.StringIO(), width=120)
    board.show_board(console)
    return console.file.getvalue()


def test_self_attention_on_the_board_is_softmax_of_dot_products() -> None:
    text = printed()
    rows = [board.MEANING[token] for token in board.ENGLISH]
    for limit in (3, 2):  # "chase" attends to three words, with the causal mask to two
        powers = [
            math.exp(sum(a * b for a, b in zip(rows[1], row, strict=True))) for row in rows[:limit]
        ]
        expected = [power / sum(powers) for power in powers] + [0.0] * (3 - limit)
        assert "chase " + "".join(f"{weight:.2f}".center(7) for weight in expected) in text


def test_alignment_on_the_board_follows_meaning_not_order() -> None:
    _, weights = board.attend(
        board.vectors(board.TURKISH),
        board.vectors(board.ENGLISH),
        board.vectors(board.ENGLISH),
        need_weights=True,
    )
    assert weights is not None
    assert weights.argmax(-1).tolist() == [0, 2, 1]  # cats, mice, chase: the verb comes last


def test_lookup_on_the_board_gets_a_gradient_from_the_fourth_step_on() -> None:
    lines = [line for line in printed().splitlines() if line.startswith("│ ") and "│" in line[2:]]
    lookup = {line.split("│")[1].strip(): line for line in lines[:5]}
    assert ["none" in line for line in lookup.values()] == [True, True, True, False, False]


def test_masks_on_the_board_count_their_pairs() -> None:
    text = printed()
    causal = 16 * 17 // 2
    window = sum(min(4, q + 1) for q in range(16))
    assert f"{causal} of 256 pairs" in text
    assert f"{window} of 256 pairs" in text
    assert board.dots(torch.tensor([True, False, True]), "#.") == "#.#"
