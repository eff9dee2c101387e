"""What is being said: the text of every row so far, and why a row ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.prefill import padded
from qkv.generation.sampling_params import BROKEN, NO_LIKELIEST, SamplingParams, TokenCounts

Reason = Literal["end", "stop", "length", "context"]
Beyond = Literal["refuse", "slide", "extend"]
Steps = Iterator[tuple[Sequence[int], Sequence[int]]]
"""For every step, rows by their place in the talk, and the word of each."""


class GeneratedToken(NamedTuple):
    row: int
    id: int | None
    """None when the row ended at an end id, which is not said."""
    reason: Reason | None
    """Why this is the row's last word; None when it is not."""


@dataclass(kw_only=True)
class GenerationBatch:
    texts: list[list[int]]
    """The prompt of every row, and what was said after it."""
    rows: list[int]
    """The numbers under which the rows are known outside."""
    uniform: Float[Tensor, "B L"]
    """What every row draws each of its words by."""
    choice: SamplingParams
    ends: tuple[int, ...] = ()
    limit: int | None = None
    slides: bool = False
    stop: Callable[[int, list[int]], bool] | None = None
    samples: int = 1
    """So many rows, one after the other, have the same prompt."""
    said: int = 0
    """Words of the longest row that are no prompt."""
    ended: dict[int, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompts = [len(text) for text in self.texts]
        self.begins = [0 for _ in self.texts]  # what is before this place is forgotten

    @property
    def length(self) -> int:
        return self.uniform.shape[1]

    @property
    def running(self) -> list[int]:
        return [row for row in range(len(self.texts)) if row not in self.ended]

    def prompt(self, row: int) -> list[int]:
        return self.texts[row][: self.prompts[row]]

    def heard(
        self, rows: Sequence[int], vocabulary: int, device: torch.device
    ) -> TokenCounts | None:
        """The words of some rows, if the choice asks for them."""
        if not self.choice.remembers:
            return None

        heard = TokenCounts(*padded([self.prompt(row) for row in rows], device), vocabulary)

        for at, row in enumerate(rows):
            for word in self.texts[row][self.prompts[row] :]:
                heard.said[at, word] += 1

        return heard

    def within_context(self, row: int) -> list[int]:
        """What of a text is read, or read again when a context is full: if its own is, only the
        last half.
        """
        text = self.texts[row]
        if self.limit is not None and len(text) - self.begins[row] > self.limit:
            self.begins[row] = len(text) - max(self.limit // 2, 1)

        return text[self.begins[row] :]

    def hear(self, rows: Sequence[int], words: Sequence[int]) -> Iterator[GeneratedToken]:
        """One step's words: those of rows that had ended are nobody's."""
        self.said += 1
        for row, word in zip(rows, words, strict=True):
            if row in self.ended:
                continue
            if word == BROKEN:
                raise ValueError(NO_LIKELIEST)

            reason = self.reason(row, word)
            if reason is not None:
                self.ended[row] = reason

            yield GeneratedToken(self.rows[row], None if reason == "end" else word, reason)

    def reason(self, row: int, word: int) -> Reason | None:
        if word in self.ends:
            return "end"

        text = self.texts[row]
        text.append(word)
        if self.stop is not None and self.stop(self.rows[row], text[self.prompts[row] :]):
            return "stop"
        if self.said == self.length:
            return "length"

        # The last word need not be read, so it needs no place.
        return (
            "context"
            if self.limit is not None and len(text) > self.limit and not self.slides
            else None
        )
