"""Beam search: the likeliest whole sequences, by keeping the best few beginnings at every token.

A hypothesis is a sequence with its end, or cut off at the longest length; its score is its
log-probability divided by a penalty that grows with its number of tokens, including the end,
because every token makes a sequence less likely. The search of a sentence ends (as with
early_stopping = "never" in `transformers`) when no open beam could still beat its n best: a
log-probability only falls, so at best it is divided by the largest penalty to come.
"""

from __future__ import annotations

from typing import Any, Unpack

from jaxtyping import Bool
from torch import Tensor

from qkv.generation.generate import Translator
from qkv.generation.prompts import Prompts
from qkv.generation.search.beams import SearchOptions, SearchRule, SentenceBeams
from qkv.generation.search.search_loop import prepare, search


def beam_search(
    model: Translator,
    source: Prompts,
    padding_mask: Bool[Tensor, "*B S"] | None = None,
    *,
    start: int | None = None,
    end: int | None,
    length: int,
    batch: int = 16,
    **options: Unpack[SearchOptions],
) -> list[Any]:
    """Find the n best hypotheses of each row, best first.

    Args:
        model: A translator, several of them, or a GPT.
        source: What a translator reads, or a GPT's prompt: one row of ids, or several.
        padding_mask: For a tensor, False for its padding.
        start: The id that a target begins with; not for a GPT.
        end: The id that ends a sequence.
        length: Tokens of a sequence at most, including the end.
        batch: Rows that are searched at a time; the result does not depend on it.
        **options: Fields of `SearchRule` by name: beams (by default 4), n_best (1), length_penalty
            (0.6), penalty ("paper"), minimum, forbidden, groups and diversity.

    Returns:
        The hypotheses of the row, or of each of several rows.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=16, context=8, width=8, depth=1, heads=2))
        >>> len(beam_search(model, [1, 2], end=0, length=3, n_best=2))
        2
    """
    model, rows, single = prepare(model, source, padding_mask, start)
    rule = SearchRule(end=end, **options)
    sentences = search(
        model, rows, rule, lambda _, fits: SentenceBeams(rule, fits), start, length, batch
    )
    best = [sentence.best() for sentence in sentences]
    return best[0] if single else best
