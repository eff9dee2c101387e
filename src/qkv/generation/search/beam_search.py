"""Beam search: the likeliest whole sequences, by keeping the best few beginnings at every token.

A hypothesis is a sequence with its end, or cut off at the longest length; its score is its
log-probability divided by a penalty that grows with its number of tokens, including the end,
because every token makes a sequence less likely. The search of a sentence ends (as with
early_stopping = "never" in `transformers`) when no open beam could still beat its n best: a
log-probability only falls, so at best it is divided by the largest penalty to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, overload

from jaxtyping import Bool
from torch import Tensor

from qkv.generation.generate import Translator
from qkv.generation.prompts import Arrays, Prompts
from qkv.generation.search.beams import Hypothesis, Penalty, SearchRule, SentenceBeams
from qkv.generation.search.search_loop import check, prepare, search
from qkv.models import GPT

__all__ = ["Hypothesis", "SearchOptions", "SearchRule", "SentenceBeams", "beam_search"]


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of `beam_search`, beside `end` and `length`."""

    start: int | None
    beams: int
    n_best: int
    length_penalty: float
    penalty: Penalty
    minimum: int
    forbidden: Sequence[int]
    groups: int
    diversity: float
    batch: int


@overload
def beam_search(
    model: GPT | Translator,
    source: Sequence[int],
    *,
    end: int | None,
    length: int,
    **options: Unpack[SearchOptions],
) -> list[Hypothesis]: ...
@overload
def beam_search(
    model: GPT | Translator,
    source: Sequence[Sequence[int]],
    *,
    end: int | None,
    length: int,
    **options: Unpack[SearchOptions],
) -> list[list[Hypothesis]]: ...
@overload
def beam_search(
    model: GPT | Translator,
    source: Arrays,
    padding_mask: Tensor | None = None,
    *,
    end: int | None,
    length: int,
    **options: Unpack[SearchOptions],
) -> list[Any]: ...
def beam_search(
    model: GPT | Translator,
    source: Prompts,
    padding_mask: Bool[Tensor, "*B S"] | None = None,
    *,
    start: int | None = None,
    end: int | None,
    length: int,
    beams: int = 4,
    n_best: int = 1,
    length_penalty: float = 0.6,
    penalty: Penalty = "paper",
    minimum: int = 0,
    forbidden: Sequence[int] = (),
    groups: int = 1,
    diversity: float = 0.0,
    batch: int = 16,
) -> list[Any]:
    """Find the n best hypotheses of each row, best first.

    Args:
        model: A translator, several of them, or a GPT.
        source: What a translator reads, or a GPT's prompt: one row of ids, or several.
        padding_mask: For a tensor, False for its padding.
        start: The id that a target begins with; not for a GPT.
        end: The id that ends a sequence.
        length: Tokens of a sequence at most, including the end.
        beams: Open beams of a row.
        n_best: Hypotheses of a row, at most as many as beams.
        length_penalty: Exponent of the penalty; 0 ranks by log-probability.
        penalty: "paper" is (5 + tokens) / 6, "power" the number of tokens as in `transformers`.
        minimum: Tokens before an end may come.
        forbidden: Ids that are never generated.
        groups: Groups of diverse beam search (Vijayakumar et al. 2016), which choose in turn.
        diversity: What a token costs a group for each time an earlier group has chosen it.
        batch: Rows that are searched at a time; the result does not depend on it.

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
    check(model, length, end, minimum, forbidden, beams)
    rule = SearchRule(
        end=end, beams=beams, minimum=minimum, forbidden=tuple(forbidden),
        n_best=n_best, alpha=length_penalty, penalty=penalty, groups=groups, diversity=diversity,
    )  # fmt: skip
    best = search_rows(model, rows, start, length, batch, rule)
    return best[0] if single else best


def search_rows(
    model: Any, rows: list[list[int]], start: int | None, length: int, batch: int, rule: SearchRule
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each row."""
    sentences: dict[int, SentenceBeams] = {}

    def begin(row: int, fits: int) -> SentenceBeams:
        sentences[row] = SentenceBeams(rule, fits)
        return sentences[row]

    search(model, rows, start, length, batch, begin, rule.advance)
    return [sentences[row].best() for row in range(len(rows))]
