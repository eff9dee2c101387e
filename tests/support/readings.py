"""Readings of ids that no tokenizer made."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.inspect.whole_words import WholeWord


def side(ids: Sequence[int]) -> Side:
    tokens = tuple(f"w{id}" for id in ids)
    return Side(
        tuple(ids), tokens, tuple(WholeWord(token, [place]) for place, token in enumerate(tokens))
    )


def reading(ids: Sequence[int], source: Sequence[int] | None = None) -> Reading:
    return Reading(side(ids), None if source is None else side(source))
