"""Whole words: which tokens form a word, and the attention between words.

Attention to a word is summed over its pieces; attention from a word is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from qkv.text.tokenizer import Tokenizer


class WholeWord(NamedTuple):
    """A word of the text and the positions of its tokens."""

    text: str
    """Empty for a special token."""
    positions: list[int]
    """Positions of its tokens."""


def whole_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[WholeWord]:
    """Group consecutive token ids into whole words."""
    groups: list[list[int]] = []
    for position, id in enumerate(ids):
        if not groups or tokenizer.starts_word[id]:
            groups.append([])

        groups[-1].append(position)

    result = []
    for group in groups:
        text = tokenizer.decode([ids[position] for position in group])
        result.append(WholeWord(text.strip(), group))

    return result


def join_words(
    weights: Float[Tensor, "*n T S"], rows: Sequence[WholeWord], columns: Sequence[WholeWord]
) -> Float[Tensor, "*n W X"]:
    """Attention between whole words: columns are summed, rows averaged; a row still sums to 1."""
    summed = weights @ membership(columns, weights.shape[-1], weights).T  # (*n, T, X)
    member = membership(rows, weights.shape[-2], weights)  # (W, T)
    return (member / member.sum(1, keepdim=True)) @ summed


def membership(words: Sequence[WholeWord], tokens: int, like: Tensor) -> Float[Tensor, "W T"]:
    """A matrix with 1 where token t belongs to word w, else 0; dtype and device as `like`."""
    member = like.new_zeros(len(words), tokens)
    for row, word in enumerate(words):
        member[row, word.positions] = 1

    return member
