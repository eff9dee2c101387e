"""Words instead of pieces: which pieces make a word, and the attention between whole words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from qkv.text.tokenizer import Tokenizer


class WholeWord(NamedTuple):
    text: str
    """Empty for a special token."""
    places: list[int]
    """Of its pieces."""


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[WholeWord]:
    """The words that ids are the pieces of, one after another."""
    groups: list[list[int]] = []
    for place, id in enumerate(ids):
        if not groups or tokenizer.starts_word[id]:
            groups.append([])

        groups[-1].append(place)

    return [
        WholeWord(tokenizer.decode([ids[place] for place in group]).strip(), group)
        for group in groups
    ]


def join_words(
    weights: Float[Tensor, "*n T S"], rows: Sequence[WholeWord], columns: Sequence[WholeWord]
) -> Float[Tensor, "*n W X"]:
    """To a word: the sum of what its pieces get. From a word: the mean of what its pieces give. So
    a row sums to 1.
    """
    return mean_rows(sum_columns(weights, columns), rows)


def sum_columns(
    weights: Float[Tensor, "*n T S"], words: Sequence[WholeWord]
) -> Float[Tensor, "*n T X"]:
    return weights @ belongs(words, weights.shape[-1], weights).T


def mean_rows(
    weights: Float[Tensor, "*n T S"], words: Sequence[WholeWord]
) -> Float[Tensor, "*n W S"]:
    member = belongs(words, weights.shape[-2], weights)
    return (member / member.sum(1, keepdim=True)) @ weights


def belongs(words: Sequence[WholeWord], places: int, like: Tensor) -> Float[Tensor, "W T"]:
    """1 where a place is of the word."""
    member = like.new_zeros(len(words), places)
    for number, word in enumerate(words):
        member[number, word.places] = 1

    return member
