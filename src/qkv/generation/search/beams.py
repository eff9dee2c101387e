"""The beams of one sentence, and the rule by which beam search ranks and ends them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import numpy as np
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.top_tokens import likeliest

Penalty = Literal["paper", "power"]
MOST_BEAMS = 1024


class Hypothesis(NamedTuple):
    """A sequence that a search has found.

    Example:
        >>> Hypothesis(ids=[3, 5], score=-0.5, log_probability=-1.0).ids
        [3, 5]
    """

    ids: list[int]
    """Without the start and the end id."""
    score: float
    """What it is ranked by; higher is better."""
    log_probability: float
    """Of all its tokens and, unless it was cut off, its end."""


class Continuation(NamedTuple):
    """A beam extended by one token."""

    beam: int
    token: int
    total: float
    """The log-probability with the token; minus infinity fills up a group."""


class SearchOptions(TypedDict, total=False):
    """The fields of `SearchRule` as keyword arguments, beside `end`."""

    beams: int
    minimum: int
    forbidden: Sequence[int]
    n_best: int
    length_penalty: float
    penalty: Penalty
    groups: int
    diversity: float


@dataclass(frozen=True, kw_only=True)
class SequenceRule(ABC):
    """What every search over whole sequences has: an end, beams, and a way to extend them."""

    end: int | None
    """The id that ends a sequence."""
    beams: int = 4
    """Open beams of a row."""
    minimum: int = 0
    """Tokens before an end may come."""
    forbidden: Sequence[int] = ()
    """Ids that are never generated."""
    beams_name: ClassVar[str] = "beams"

    def __post_init__(self) -> None:
        if not 1 <= self.beams <= MOST_BEAMS:
            raise ValueError(f"{self.beams_name}: expected 1 to {MOST_BEAMS:,}, not {self.beams:,}")

    @abstractmethod
    def advance(
        self, logits: Float[Tensor, "R V"], sentences: list[Any], step: int
    ) -> list[list[tuple[int, int]]]:
        """The beams to keep of each sentence, each as the old beam and the new token.

        A sentence has always the same number of them, and none when its search is over.

        Args:
            logits: Of all beams, those of a sentence side by side.
            sentences: The sentences they belong to.
            step: Number of tokens so far.
        """

    def excluded(self, step: int) -> list[int]:
        """Ids that may not come after `step` tokens."""
        if self.end is None or step >= self.minimum:
            return sorted(set(self.forbidden))

        return sorted({*self.forbidden, self.end})


@dataclass(frozen=True, kw_only=True)
class SearchRule(SequenceRule):
    """The parameters of a beam search."""

    n_best: int = 1
    """Hypotheses of a row, at most as many as beams."""
    length_penalty: float = 0.6
    """Exponent of the penalty; 0 ranks by log-probability."""
    penalty: Penalty = "paper"
    """Its base: (5 + tokens) / 6 as in the paper, or "power", the tokens as in `transformers`."""
    groups: int = 1
    """Groups of diverse beam search (Vijayakumar et al. 2016), which choose in turn."""
    diversity: float = 0.0
    """What a token costs a group for each time an earlier group has chosen it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_best <= self.beams:
            raise ValueError(
                f"n_best: expected 1 to {self.beams}, the number of beams, not {self.n_best:,}"
            )
        if not -10 <= self.length_penalty <= 10:
            raise ValueError(
                f"length_penalty: expected -10 to 10 (0 for none), not {self.length_penalty}"
            )
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
    def group_best(self) -> int:
        """Hypotheses of a group that can be among the n best."""
        return min(self.n_best, self.width)

    def divisor(self, tokens: int) -> float:
        """What the log-probability of a sequence is divided by."""
        base = (5 + tokens) / 6 if self.penalty == "paper" else tokens
        return base**self.length_penalty

    def advance(
        self, logits: Float[Tensor, "R V"], sentences: list[SentenceBeams], step: int
    ) -> list[list[tuple[int, int]]]:
        """The best continuations of every sentence's beams by one token."""
        # Twice as many as are kept, because half of them may end; and more for each earlier group,
        # whose tokens may cost too much.
        count = (self.groups + 1) * self.width
        top_values, top_ids = likeliest(logits, count, self.excluded(step))
        by_sentence = (len(sentences), -1, top_values.shape[1])  # (B, beams, K)
        values = top_values.cpu().double().numpy().reshape(by_sentence)
        ids = top_ids.cpu().numpy().reshape(by_sentence)
        if np.isnan(values).any():
            raise ValueError(NO_LIKELIEST)

        chosen = []
        for sentence, its_values, its_ids in zip(sentences, values, ids, strict=True):
            chosen.append(sentence.advance(its_values, its_ids))

        return chosen


class Beam(NamedTuple):
    """A sequence so far; its total is minus infinity if it only fills up a group."""

    ids: list[int]
    total: float
    """Its log-probability."""


@dataclass
class SentenceBeams:
    """The open beams of one sentence, group after group, and each group's best hypotheses."""

    rule: SearchRule
    length: int
    beams: list[Beam] = field(default_factory=lambda: [Beam([], 0.0)])
    ended: list[list[Hypothesis]] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = [[] for _ in range(self.rule.groups)]

    def advance(
        self, values: Float64[np.ndarray, "R K"], ids: Int64[np.ndarray, "R K"]
    ) -> list[tuple[int, int]]:
        """The beams to keep, each as the old beam and its token; none when the search is over.

        Args:
            values: Log-probabilities of the likeliest tokens of each beam.
            ids: These tokens.
        """
        totals = values + np.array([[beam.total] for beam in self.beams])  # (R, K)
        width = self.rule.width
        chosen: list[Continuation] = []
        used: Counter[int] = Counter()

        for group in range(self.rule.groups):
            first = group * width
            last = first + width
            if len(self.beams) == 1:  # all groups begin with the empty beam
                first = 0
                last = 1

            best = self.choose(group, first, totals[first:last], ids[first:last], used)
            used.update(going.token for going in best if going.total > -math.inf)
            chosen += best

        self.beams = [Beam([*self.beams[old].ids, token], total) for old, token, total in chosen]
        if self.is_over():
            return []

        return [(going.beam, going.token) for going in chosen]

    def choose(
        self,
        group: int,
        first: int,
        totals: Float64[np.ndarray, "W K"],
        ids: Int64[np.ndarray, "W K"],
        used: Counter[int],
    ) -> list[Continuation]:
        """A group's best continuations; those that end become hypotheses."""
        rule = self.rule
        ranked = totals
        if rule.diversity and used:
            counts = np.vectorize(used.__getitem__, otypes=[np.int64])(ids)
            ranked = totals - rule.diversity * counts

        best = np.argsort(-ranked, axis=None, kind="stable")[: 2 * rule.width].tolist()
        going: list[Continuation] = []
        for rank, index in enumerate(best):
            beam = first + index // totals.shape[1]
            token = int(ids.flat[index])
            total = float(totals.flat[index])
            if total == -math.inf:
                continue

            tokens = len(self.beams[beam].ids) + 1
            if token == rule.end or tokens == self.length:
                if rank < rule.width:
                    self.add_hypothesis(group, Continuation(beam, token, total))
            elif len(going) < rule.width:
                going.append(Continuation(beam, token, total))

        filler = Continuation(first, 0, -math.inf)
        return going + [filler] * (rule.width - len(going))

    def add_hypothesis(self, group: int, last: Continuation) -> None:
        """End a beam with its last token, and keep it if it is among the group's best."""
        ids = self.beams[last.beam].ids
        score = last.total / self.rule.divisor(len(ids) + 1)
        if last.token != self.rule.end:
            ids = [*ids, last.token]

        hypotheses = [*self.ended[group], Hypothesis(ids, score, last.total)]
        self.ended[group] = by_score(hypotheses)[: self.rule.group_best]

    def is_over(self) -> bool:
        """True if no open beam of any group can still become one of its best hypotheses."""
        rule = self.rule
        tokens = len(self.beams[0].ids) + 1
        largest = max(rule.divisor(tokens), rule.divisor(self.length))
        for group, ended in enumerate(self.ended):
            beams = self.beams[group * rule.width : (group + 1) * rule.width]
            best = max(beam.total for beam in beams)
            full = len(ended) == rule.group_best and best / largest <= ended[-1].score
            if best > -math.inf and not full:
                return False

        return True

    def best(self) -> list[Hypothesis]:
        """The n best hypotheses; two groups may have found the same."""
        distinct: dict[tuple[int, ...], Hypothesis] = {}
        for ended in self.ended:
            for hypothesis in ended:
                distinct[tuple(hypothesis.ids)] = hypothesis

        return by_score(list(distinct.values()))[: self.rule.n_best]


def by_score(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
