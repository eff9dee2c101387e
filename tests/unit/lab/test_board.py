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


def rows_of_tables() -> list[str]:
    return [line for line in printed().splitlines() if line.startswith("│ ") and "│" in line[2:]]


def test_lookup_on_the_board_gets_a_gradient_from_the_fourth_step_on() -> None:
    lookup = {line.split("│")[1].strip(): line for line in rows_of_tables()[:6]}
    assert ["none" in line for line in lookup.values()] == [True] * 3 + [False] * 3
    # The keys (1, 0) and (0.8, 0.6) score .9 and .96: (.9 * 10 + .96 * 20) / 2 = 14.1
    assert "14.10" in lookup["inner products of the top 2"]


def test_new_rows_on_the_board_are_weighted_sums_of_vectors() -> None:
    rows = [board.MEANING[token] for token in board.ENGLISH]
    powers = [math.exp(sum(a * b for a, b in zip(rows[1], row, strict=True))) for row in rows]
    new = []
    for dimension in range(4):
        parts = [power * row[dimension] for power, row in zip(powers, rows, strict=True)]
        new.append(f"{sum(parts) / sum(powers):.2f}")

    cells = [line.replace("│", " ").split() for line in rows_of_tables()]
    assert ["chase", *new] in cells
    assert ["a", "row", "3", "x", "4", *new] in cells
    assert ["a", "column", "4", "x", "3", *new] in cells


def test_columns_are_the_transpose_of_rows_also_between_two_sequences() -> None:
    query, key, value = torch.randn(3, 5, 4, dtype=torch.float64)
    right, _ = board.attend(query[:2], key, value, score=board.dot)
    torch.testing.assert_close(board.attend_in_columns(query[:2].T, key.T, value.T).T, right)


def test_the_slides_matrices_come_back_to_the_digit() -> None:
    for matrix in (board.SLIDE_ALIGNMENT, board.SLIDE_WEIGHTS):
        _, weights = board.slide_head(matrix)
        torch.testing.assert_close(weights, torch.tensor(matrix, dtype=torch.float64))

    scores, masked = board.slide_head(board.SLIDE_WEIGHTS, board.Causal())
    shown = [[f"{weight:.2f}" for weight in row] for row in masked.tolist()]
    assert shown == [["1.00", "0.00", "0.00"], ["0.04", "0.96", "0.00"], ["0.01", "0.41", "0.58"]]
    assert scores[0].tolist() == [math.log(0.91), -math.inf, -math.inf]
    text = printed()
    assert "quick   0.03   0.74   0.23" in text
    assert "quick   0.04   0.96   0.00" in text
    assert "fareleri   0.03   0.10   0.87" in text


def test_wide_heads_are_joined_and_resized() -> None:
    cells = [" ".join(line.replace("│", " ").split()) for line in rows_of_tables()]
    assert f"64: d_model / H, as here 10 x 512 10 x 512 {4 * 512 * 512:,}" in cells
    wide = 4 * 8 * 512 * 512
    assert f"512: d_model, the slide 10 x 4096 10 x 512 {wide:,}" in cells


def test_masks_on_the_board_count_their_pairs() -> None:
    text = printed()
    causal = 16 * 17 // 2
    window = sum(min(4, q + 1) for q in range(16))
    assert f"{causal} of 256 pairs" in text
    assert f"{window} of 256 pairs" in text
    assert board.dots(torch.tensor([True, False, True]), "#.") == "#.#"
