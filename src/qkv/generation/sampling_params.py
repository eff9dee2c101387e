"""How the next word is chosen from a model's logits: first what may be said and what is favoured,
then one draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.prompts import check_whole
from qkv.generation.sampling import candidates, draw
from qkv.nn.config import documented

BROKEN = -1  # the word of a row that has no likeliest one
NO_LIKELIEST = (
    "logits: a row has no likeliest word (nan or infinite); the model's weights are broken"
)


@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters: how the next token is drawn from the logits."""

    temperature: float = 1.0
    """Above 1 bolder, below 1 more careful; 0 is always the likeliest word."""
    top_k: int | None = None
    """Of all words, so many of the likeliest may be said."""
    top_p: float | None = None
    """Of these, the fewest, likeliest first, whose probabilities sum to this."""
    min_p: float | None = None
    """Words less likely than this times the likeliest are left out."""
    repetition: float = 1.0
    """Above 1, words of the prompt or already said get less likely: positive logits are divided by
    it, negative ones multiplied."""
    presence: float = 0.0
    """Taken off the logit of each word that was said already."""
    frequency: float = 0.0
    """Taken off the logit of a word for each time it was said already."""
    forbidden: tuple[int, ...] = ()
    """Ids that are never said."""
    forced: Mapping[int, int] = field(default_factory=dict)
    """The id that must stand at a place; 0 is the first new word."""
    minimum: int = 0
    """Words before an end id may come."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature: expected 0 (always the likeliest word) or more, not {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: expected 1 or more, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, not {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p: expected 0 to 1, not {self.min_p}")
        if not 0 < self.repetition < math.inf:
            raise ValueError(
                f"repetition: expected more than 0 (1 changes nothing), not {self.repetition}"
            )

        for name in ("presence", "frequency"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(
                    f"{name}: expected a number (0 changes nothing), not {getattr(self, name)}"
                )

        forbidden: object = self.forbidden
        if isinstance(forbidden, int | str):
            raise TypeError(f"forbidden: expected a list of ids, not {forbidden!r}")
        if self.minimum < 0:
            raise ValueError(f"minimum: expected 0 words or more, not {self.minimum}")
        if any(place < 0 for place in self.forced):
            raise ValueError(
                f"forced: expected places from 0, the first new word, not {min(self.forced)}"
            )

    def check(self, vocabulary: int, ends: Sequence[int] = ()) -> None:
        """Against a model's vocabulary and the ids that end a text."""
        for name, ids in (
            ("forbidden", self.forbidden),
            ("forced", self.forced.values()),
            ("end", ends),
        ):
            for id in ids:
                check_whole(name, id, "an id, a whole number")
                if not 0 <= id < vocabulary:
                    raise ValueError(f"{name}: expected an id from 0 to {vocabulary - 1}, not {id}")

        for place, id in self.forced.items():
            if id in self.forbidden:
                raise ValueError(f"forced: {id} at place {place} is forbidden at the same time")
            if id in ends and place < self.minimum:
                raise ValueError(
                    f"forced: place {place} ends the text, and minimum asks for {self.minimum} words"
                )

        if len({*self.forbidden, *(ends if self.minimum else ())}) == vocabulary:
            raise ValueError("forbidden: no word is left that may be said")

    @property
    def remembers(self) -> bool:
        """Whether it matters which words were said."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def settled(self) -> int:
        """The place from which on every word is chosen in the same way."""
        return max([self.minimum, *(place + 1 for place in self.forced)])


class TokenCounts:
    """The words of each row: which the prompt has, and how often each was said since."""

    def __init__(
        self, prompt: Int[Tensor, "B T"], padding_mask: Bool[Tensor, "B T"] | None, vocabulary: int
    ) -> None:
        words = (
            torch.ones_like(prompt, dtype=torch.float32)
            if padding_mask is None
            else padding_mask.float()
        )  # (B, T)
        self.said = torch.zeros(prompt.shape[0], vocabulary, device=prompt.device)  # (B, V)
        self.read = self.said.scatter_add(1, prompt, words) > 0  # (B, V)

    def add(self, words: Int[Tensor, "B"]) -> None:
        self.said.scatter_add_(
            1, words.clamp(min=0).unsqueeze(1), torch.ones_like(self.said[:, :1])
        )

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        self.said, self.read = self.said.index_select(0, rows), self.read.index_select(0, rows)


def processed(
    logits: Float[Tensor, "B V"],
    choice: SamplingParams,
    heard: TokenCounts | None,
    place: int,
    ends: Sequence[int],
) -> Float[Tensor, "B V"]:
    """Logits after penalties, and minus infinity for what may not be said at this place."""
    if heard is not None and choice.repetition != 1:
        less = torch.where(logits > 0, logits / choice.repetition, logits * choice.repetition)
        logits = torch.where(heard.read | (heard.said > 0), less, logits)

    if heard is not None and (choice.presence or choice.frequency):
        logits = logits - choice.presence * (heard.said > 0) - choice.frequency * heard.said

    if place in choice.forced:
        only = torch.full_like(logits, -math.inf)
        only[:, choice.forced[place]] = 0
        return only

    never = (*choice.forbidden, *(ends if place < choice.minimum else ()))

    return logits.index_fill(1, on_device(never, logits.device), -math.inf) if never else logits


@lru_cache(maxsize=64)  # a step that is recorded may bring nothing from the host
def on_device(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, "N"]:
    return torch.tensor(ids, device=device)


def sample_tokens(
    logits: Float[Tensor, "B V"], uniform: Float[Tensor, "B"], choice: SamplingParams
) -> Int[Tensor, "B"]:
    """A word for each row, found by its chance in (0, 1]; with temperature 0 the likeliest, the
    first of equals.

    BROKEN where there is no likeliest word (nan or infinite): who reads the words says so, without
    a look here, for which a GPU's host would have to wait.
    """
    top, likeliest = logits.max(-1)
    if choice.temperature == 0:
        words = likeliest
    else:
        likely, among = candidates(
            logits,
            temperature=choice.temperature,
            top_k=choice.top_k,
            top_p=choice.top_p,
            min_p=choice.min_p,
        )

        drawn = draw(likely, uniform)
        words = drawn if among is None else among.gather(1, drawn.unsqueeze(1)).squeeze(1)

    return words.where(top.isfinite(), BROKEN)
