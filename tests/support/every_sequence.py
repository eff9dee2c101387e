"""All sequences that a small model can say, each with its log-probability from one whole forward
pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor], Tensor]
"""From (N, T) words said, the first of them given, to the log-probabilities (N, V) of the next."""


def every_sequence(
    scores: Scores, first: list[int], end: int, length: int, vocabulary: int
) -> dict[tuple[int, ...], float]:
    """Of at most `length` words with their end, or of `length` words without it; the end is not in
    the sequence.
    """
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 0.0}
    for said in range(length):
        texts = list(open_)
        ids = torch.tensor([[*first, *text] for text in texts])
        table = scores(ids)
        fresh = {}
        for row, text in enumerate(texts):
            for word in range(vocabulary):
                total = open_[text] + float(table[row, word])
                if word == end:
                    found[text] = total
                elif said == length - 1:
                    found[(*text, word)] = total
                else:
                    fresh[(*text, word)] = total
        open_ = fresh
    assert abs(sum(torch.tensor(list(found.values())).exp().tolist()) - 1) < 1e-6  # these are all
    return found


def words_of(text: tuple[int, ...], length: int) -> int:
    """How many words a sequence has, its end among them."""
    return min(len(text) + 1, length)
