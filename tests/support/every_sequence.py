"""All sequences that a small model can generate, with their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor], Tensor]
"""From ids (N, T) to the log-probabilities (N, V) of the next token."""


def every_sequence(
    scores: Scores, first: list[int], end: int, length: int, vocabulary: int
) -> dict[tuple[int, ...], float]:
    """Every sequence of up to `length` tokens with their end, or of `length` without it.

    The end itself is not part of a key.
    """
    sequences: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 0.0}
    for step in range(length):
        prefixes = list(open_)
        ids = torch.tensor([[*first, *prefix] for prefix in prefixes])
        table = scores(ids)
        fresh = {}
        for row, prefix in enumerate(prefixes):
            for token in range(vocabulary):
                total = open_[prefix] + float(table[row, token])
                if token == end:
                    sequences[prefix] = total
                elif step == length - 1:
                    sequences[(*prefix, token)] = total
                else:
                    fresh[(*prefix, token)] = total
        open_ = fresh
    assert (
        abs(sum(torch.tensor(list(sequences.values())).exp().tolist()) - 1) < 1e-6
    )  # these are all
    return sequences


def words_of(text: tuple[int, ...], length: int) -> int:
    """Number of tokens of a sequence, including its end."""
    return min(len(text) + 1, length)
