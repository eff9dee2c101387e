"""qkv demo: the lecture's models, trained and tried in two minutes."""

from __future__ import annotations


def run(board_only: bool = False) -> None:
    """Train the lecture's English-Turkish translator and a small GPT on Python, and try both.

    Args:
        board_only: Only the tables of the board: from a hash table to attention, masks, the models.
    """
    from qkv.lab import board, demo

    if board_only:
        board.show_board()
    else:
        demo.show_demo()
