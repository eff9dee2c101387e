"""The batch that is being generated: the ids of every row so far, and why a row ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.padding import pad_rows
from qkv.generation.sampling_params import BROKEN, NO_LIKELIEST, SamplingParams, TokenCounts
from qkv.generation.stop import Reason, StopRule

Beyond = Literal["refuse", "slide", "extend"]
Steps = Iterator[tuple[Sequence[int], Sequence[int]]]
"""For every step, the rows of the batch and the token of each."""


class GeneratedToken(NamedTuple):
    """One generated token of a row.

    Example:
        >>> GeneratedToken(row=0, id=5, reason=None).id
        5
    """

    row: int
    """Number of the sequence."""
    id: int | None
    """The token; None if the row ended at an end id, which is not part of it."""
    reason: Reason | None
    """Why this is the row's last token; None if it is not."""


@dataclass(kw_only=True)
class GenerationBatch:
    """Sequences that are generated together."""

    sequences: list[list[int]]
    """The prompt of every row, and the tokens generated after it."""
    rows: list[int]
    """The numbers of the rows for the caller."""
    uniforms: Float[Tensor, "B L"]
    """The numbers in (0, 1] by which each row draws its tokens."""
    sampling_params: SamplingParams
    ends: tuple[int, ...] = ()
    limit: int | None = None
    """Positions of the context, if there is an end."""
    slides: bool = False
    """Forget the beginning of a sequence that fills the context."""
    stop: Callable[[int, list[int]], bool] | None = None
    samples: int = 1
    """Consecutive rows with the same prompt."""
    steps: int = 0
    """Tokens generated so far in every running row."""
    ended: dict[int, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt_lengths = list(map(len, self.sequences))
        self.begins = [0] * len(self.sequences)  # the first position still in the context
        self.rule = StopRule(self.ends, self.length, None if self.slides else self.limit)

    @property
    def length(self) -> int:
        """Maximum number of new tokens of a row."""
        return self.uniforms.shape[1]

    @property
    def running(self) -> list[int]:
        """The rows that have not ended."""
        return [row for row in range(len(self.sequences)) if row not in self.ended]

    def token_counts(
        self, rows: Sequence[int], vocabulary: int, device: torch.device
    ) -> TokenCounts | None:
        """The tokens of some rows, if the sampling parameters depend on them."""
        if not self.sampling_params.needs_counts:
            return None

        prompts = [self.sequences[row][: self.prompt_lengths[row]] for row in rows]
        counts = TokenCounts(*pad_rows(prompts, left=True, device=device), vocabulary)
        for index, row in enumerate(rows):
            for token in self.sequences[row][self.prompt_lengths[row] :]:
                counts.generated[index, token] += 1

        return counts

    def within_context(self, row: int) -> list[int]:
        """The tokens to prefill: all, or the last half of the context if the row has filled it."""
        sequence = self.sequences[row]
        if self.limit is not None and len(sequence) - self.begins[row] > self.limit:
            self.begins[row] = len(sequence) - max(self.limit // 2, 1)

        return sequence[self.begins[row] :]

    def add_step(self, rows: Sequence[int], tokens: Sequence[int]) -> Iterator[GeneratedToken]:
        """Append one token per row; tokens of rows that have ended are discarded."""
        self.steps += 1
        for row, token in zip(rows, tokens, strict=True):
            if row in self.ended:
                continue
            if token == BROKEN:
                raise ValueError(NO_LIKELIEST)

            reason = self.append(row, token)
            if reason is not None:
                self.ended[row] = reason

            yield GeneratedToken(self.rows[row], None if reason == "end" else token, reason)

    def append(self, row: int, token: int) -> Reason | None:
        """Append a token, unless it is an end id, and return why the row has ended, if it has."""
        sequence = self.sequences[row]
        prompt_length = self.prompt_lengths[row]

        def stops(_: int) -> bool:
            return self.stop is not None and self.stop(self.rows[row], sequence[prompt_length:])

        return self.rule.append(sequence, token, prompt_length, stops)
