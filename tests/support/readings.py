"""Model inputs from ids, without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.whole_words import WholeWord


def side(ids: Sequence[int]) -> Side:
    """A token sequence in which each token is a word."""
    tokens = tuple(f"w{id}" for id in ids)
    words = tuple(WholeWord(token, [position]) for position, token in enumerate(tokens))
    return Side(tuple(ids), tokens, words)


def reading(ids: Sequence[int], source: Sequence[int] | None = None) -> Reading:
    """The input of a model, or with a source that of a translator."""
    if source is None:
        return Reading(side(ids))
    return Reading(side(ids), side(source))
