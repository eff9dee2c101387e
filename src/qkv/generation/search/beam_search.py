"""Beam search: the likeliest whole sequences, found by keeping the best few beginnings at every
word.

A hypothesis is a sequence with its end, or cut off at the length asked for; its score is its
log-probability divided by a penalty that grows with its words, the end among them, because every
word makes a sequence less likely. The search of a sentence ends when no open beam could still beat
its n best, however it went on: its log-probability only falls, so at best it is divided by the
largest penalty to come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from qkv.generation.generate import Translator
from qkv.generation.prompts import Arrays, Prompts
from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.search.search_loop import check, search, settle
from qkv.generation.top_tokens import likeliest
from qkv.models import GPT

Penalty = Literal["paper", "power"]


class Hypothesis(NamedTuple):
    ids: list[int]
    """Without the start and the end id."""
    score: float
    """What it was ranked by; higher is better."""
    log_probability: float
    """Of all its words and, unless it was cut off, its end."""


class SearchOptions(TypedDict, total=False):
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
    **how: Unpack[SearchOptions],
) -> list[Hypothesis]: ...
@overload
def beam_search(
    model: GPT | Translator,
    source: Sequence[Sequence[int]],
    *,
    end: int | None,
    length: int,
    **how: Unpack[SearchOptions],
) -> list[list[Hypothesis]]: ...
@overload
def beam_search(
    model: GPT | Translator,
    source: Arrays,
    padding_mask: Tensor | None = None,
    *,
    end: int | None,
    length: int,
    **how: Unpack[SearchOptions],
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
    """The n best hypotheses of each row, best first: at most `length` words, the end among them. Of
    one row, a flat list of ids or a one-dimensional tensor, they are returned alone.

    A translator reads `source`, padded where `padding_mask` is False, or lists of different
    lengths; several models translate together. A GPT goes on from `source`, its prompt, and needs
    no start. `batch` sentences are searched at a time, those of nearly one length together; what is
    found does not depend on it.

    `length_penalty` is the exponent of (5 + words) / 6, as in the Transformer's paper, or with
    penalty = "power" of the number of words, as in `transformers`, whose early_stopping = "never"
    is the rule here; 0 ranks by log-probability. No end comes before `minimum` words, and what is
    `forbidden` never.

    Diverse beam search (Vijayakumar et al. 2016): the beams fall into `groups`, each a beam search
    of its own, that choose one after the other at every word; a word with which earlier groups go
    on costs a group `diversity` for each time, in its choice but not in its score.
    """
    one, rows, single = settle(model, source, padding_mask, start)
    check(one, length, end, minimum, forbidden, beams)
    rule = SearchRule(
        end=end,
        beams=beams,
        n_best=n_best,
        alpha=length_penalty,
        penalty=penalty,
        minimum=minimum,
        forbidden=tuple(forbidden),
        groups=groups,
        diversity=diversity,
    )

    found: dict[int, SentenceBeams] = {}

    def begin(number: int, length: int) -> SentenceBeams:
        found[number] = SentenceBeams(rule, length)
        return found[number]

    search(one, rows, start, length, batch, begin, rule.advance)
    best = [found[number].best() for number in range(len(rows))]

    return best[0] if single else best


@dataclass(frozen=True, kw_only=True)
class SearchRule:
    """What is searched for."""

    end: int | None
    beams: int
    n_best: int
    alpha: float
    penalty: Penalty
    minimum: int
    forbidden: tuple[int, ...]
    groups: int
    diversity: float

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beams:
            raise ValueError(
                f"n_best: expected 1 to {self.beams}, as many as there are beams, not {self.n_best:,}"
            )
        if not -10 <= self.alpha <= 10:
            raise ValueError(f"length_penalty: expected -10 to 10 (0 for none), not {self.alpha}")
        if self.penalty not in ("paper", "power"):
            raise ValueError(f"penalty: expected paper or power, not {self.penalty!r}")
        if self.groups < 1 or self.beams % self.groups:
            raise ValueError(
                f"groups: expected a divisor of beams = {self.beams}, not {self.groups}"
            )
        if not 0 <= self.diversity < math.inf:
            raise ValueError(f"diversity: expected 0 or more, not {self.diversity}")

    @property
    def width(self) -> int:
        """Beams of a group."""
        return self.beams // self.groups

    @property
    def kept(self) -> int:
        """Hypotheses of a group that can be among the n best."""
        return min(self.n_best, self.width)

    def divisor(self, words: int) -> float:
        return ((5 + words) / 6 if self.penalty == "paper" else words) ** self.alpha

    def advance(
        self, logits: Float[Tensor, "R V"], sentences: list[SentenceBeams], said: int
    ) -> list[list[tuple[int, int]]]:
        """One word further: the best of every beam's continuations."""
        never = {
            *self.forbidden,
            *([self.end] if self.end is not None and said < self.minimum else []),
        }
        # Twice as many as go on, because half of them may end; and what earlier groups may have
        # said is worth less.
        count = (self.groups + 1) * self.width
        values, words = likeliest(logits, count, sorted(never))
        by_sentence = (len(sentences), -1, values.shape[1])  # (B, beams, K)
        scores, ids = (x.numpy().reshape(by_sentence) for x in (values.cpu().double(), words.cpu()))
        if np.isnan(scores).any():
            raise ValueError(NO_LIKELIEST)

        return [each.advance(*its) for each, *its in zip(sentences, scores, ids, strict=True)]


class Beam(NamedTuple):
    """A sequence so far. Where too few can be said, some beams are nothing: minus infinity is no
    probability.
    """

    text: list[int]
    total: float
    """Its log-probability."""


@dataclass
class SentenceBeams:
    """The open beams of one sentence, group after group, and the best that ended in each group."""

    rule: SearchRule
    length: int
    beams: list[Beam] = field(default_factory=lambda: [Beam([], 0.0)])
    ended: list[list[Hypothesis]] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = [[] for _ in range(self.rule.groups)]

    def advance(
        self, values: Float64[np.ndarray, "R K"], words: Int64[np.ndarray, "R K"]
    ) -> list[tuple[int, int]]:
        """Each beam that goes on, by the one it comes from and its word; none when no open beam
        matters any more.
        """
        totals = values + np.array([[beam.total] for beam in self.beams])  # (R, K)
        width, begins = self.rule.width, len(self.beams) == 1
        chosen: list[tuple[int, int, float]] = []

        for group in range(self.rule.groups):
            mine = slice(0, 1) if begins else slice(group * width, (group + 1) * width)
            spoken = Counter(word for _, word, total in chosen if total > -math.inf)
            chosen += self.choose(group, mine.start, totals[mine], words[mine], spoken)

        self.beams = [Beam([*self.beams[old].text, word], total) for old, word, total in chosen]

        return [] if self.is_over() else [(old, word) for old, word, _ in chosen]

    def choose(
        self,
        group: int,
        first: int,
        totals: Float64[np.ndarray, "W K"],
        words: Int64[np.ndarray, "W K"],
        spoken: Counter[int],
    ) -> list[tuple[int, int, float]]:
        """A group's best continuations, as (old beam, word, log-probability); those that end are
        kept apart.
        """
        rule, ranked = self.rule, totals
        if rule.diversity and spoken:
            ranked = totals - rule.diversity * np.array(
                [[spoken[word] for word in row] for row in words.tolist()]
            )

        best = np.argsort(-ranked, axis=None, kind="stable")[: 2 * rule.width].tolist()
        going: list[tuple[int, int, float]] = []

        for rank, at in enumerate(best):
            old, word, total = (
                first + at // totals.shape[1],
                int(words.flat[at]),
                float(totals.flat[at]),
            )
            if total == -math.inf:
                continue

            text = self.beams[old].text
            if word == rule.end or len(text) + 1 == self.length:
                if rank < rule.width:
                    self.end(
                        group, text if word == rule.end else [*text, word], len(text) + 1, total
                    )
            elif len(going) < rule.width:
                going.append((old, word, total))

        return going + [(first, 0, -math.inf)] * (rule.width - len(going))

    def end(self, group: int, ids: list[int], words: int, total: float) -> None:
        hypotheses = [*self.ended[group], Hypothesis(ids, total / self.rule.divisor(words), total)]
        self.ended[group] = sorted(hypotheses, key=lambda each: -each.score)[: self.rule.kept]

    def is_over(self) -> bool:
        rule, width = self.rule, self.rule.width
        largest = max(rule.divisor(len(self.beams[0].text) + 1), rule.divisor(self.length))
        for group, ended in enumerate(self.ended):
            best = max(beam.total for beam in self.beams[group * width : (group + 1) * width])
            full = len(ended) == rule.kept and best / largest <= ended[-1].score
            if best > -math.inf and not full:
                return False

        return True

    def best(self) -> list[Hypothesis]:
        """Two groups may have found the same."""
        unlike = {tuple(each.ids): each for ended in self.ended for each in ended}
        return sorted(unlike.values(), key=lambda each: -each.score)[: self.rule.n_best]
