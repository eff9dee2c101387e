"""Sampling parameters, and the choice of the next token: penalties, forbidden tokens, one draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.kernels import sampling_kernel
from qkv.generation.kernels.sampling_kernel import RowFilters
from qkv.generation.prompts import check_whole
from qkv.generation.sampling import candidates, draw
from qkv.nn.config import documented

BROKEN = -1  # the token of a row without a likeliest one
NO_LIKELIEST = (
    "logits: a row has no likeliest token (nan or infinite); the model's weights are broken"
)


@dataclass(frozen=True, kw_only=True)
class SamplingFilters:
    """The sampling parameters that every command has as flags."""

    temperature: float = 1.0
    """Above 1 more random, below 1 less; 0 always takes the most probable token."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Sample from the fewest tokens whose probabilities sum to this; 1 for all."""
    min_p: float | None = None
    """Leave out tokens less probable than this times the most probable one."""
    repetition: float = 1.0
    """Above 1, tokens already in the text become less probable."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                "temperature: expected 0 (always the likeliest token) or more, "
                f"not {self.temperature}"
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


@dataclass(frozen=True, kw_only=True)
class SamplingPenalties(SamplingFilters):
    """The sampling parameters without those that name token ids."""

    presence: float = 0.0
    """Subtracted from the logit of each token that was generated before."""
    frequency: float = 0.0
    """Subtracted from the logit of a token for each time it was generated before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("presence", "frequency"):
            penalty = getattr(self, name)
            if not math.isfinite(penalty):
                raise ValueError(f"{name}: expected a number (0 changes nothing), not {penalty}")


@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams(SamplingPenalties):
    """Sampling parameters: how the next token is chosen from the logits.

    Positive logits of repeated tokens are divided by `repetition`, negative ones multiplied.

    Example:
        >>> SamplingParams(temperature=0.8, top_k=40).top_k
        40
    """

    forbidden: tuple[int, ...] = ()
    """Ids that are never generated."""
    forced: Mapping[int, int] = field(default_factory=dict)
    """The id that must be generated at a position; 0 is the first new token."""
    minimum: int = 0
    """Tokens before an end id may come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        forbidden: object = self.forbidden
        if isinstance(forbidden, int | str):
            raise TypeError(f"forbidden: expected a list of ids, not {forbidden!r}")
        if self.minimum < 0:
            raise ValueError(f"minimum: expected 0 tokens or more, not {self.minimum}")
        if any(position < 0 for position in self.forced):
            raise ValueError(
                f"forced: expected positions from 0, the first new token, not {min(self.forced)}"
            )

    def check(self, vocabulary: int, ends: Sequence[int] = ()) -> None:
        """Raise unless all ids are in the vocabulary and the parameters leave a token to choose.

        Args:
            vocabulary: Number of tokens of the model.
            ends: Ids that end a sequence.
        """
        check_ids("forbidden", self.forbidden, vocabulary)
        check_ids("forced", list(self.forced.values()), vocabulary)
        check_ids("end", ends, vocabulary)

        for position, id in self.forced.items():
            if id in self.forbidden:
                raise ValueError(f"forced: {id} at position {position} is forbidden, too")
            if id in ends and position < self.minimum:
                raise ValueError(
                    f"forced: position {position} ends the sequence, "
                    f"and minimum asks for {self.minimum} tokens"
                )

        excluded = {*self.forbidden}
        if self.minimum:
            excluded.update(ends)

        if len(excluded) == vocabulary:
            raise ValueError("forbidden: no token is left that may be generated")

    @property
    def row_filters(self) -> RowFilters:
        """What the sampling kernel reads of a row."""
        return RowFilters.create(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def needs_counts(self) -> bool:
        """Whether the choice depends on the tokens so far, so that they must be counted."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def steady_from(self) -> int:
        """From this position on, every token is chosen in the same way."""
        return max([self.minimum, *(position + 1 for position in self.forced)])


def sampling_params_of(flags: SamplingFilters) -> SamplingParams:
    """The sampling parameters among the fields of flags."""
    names = {field.name for field in fields(SamplingParams)}
    return SamplingParams(**{name: value for name, value in vars(flags).items() if name in names})


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition: float
    presence: float
    frequency: float
    forbidden: tuple[int, ...]
    forced: Mapping[int, int]
    minimum: int


def check_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    for id in ids:
        check_whole(name, id, "an id, a whole number")
        if not 0 <= id < vocabulary:
            raise ValueError(f"{name}: expected an id from 0 to {vocabulary - 1}, not {id}")


class TokenCounts:
    """The tokens of each row: which the prompt contains, and how often each was generated.

    Args:
        prompt: The ids of the prompts.
        padding_mask: True for tokens; None without padding.
        vocabulary: V.
    """

    def __init__(
        self, prompt: Int[Tensor, "B T"], padding_mask: Bool[Tensor, "B T"] | None, vocabulary: int
    ) -> None:
        if padding_mask is None:
            padding_mask = torch.ones_like(prompt, dtype=torch.bool)

        self.generated = torch.zeros(prompt.shape[0], vocabulary, device=prompt.device)  # (B, V)
        """How often each token was generated."""
        self.in_prompt = self.generated.scatter_add(1, prompt, padding_mask.float()) > 0  # (B, V)
        """Whether each token is in the prompt."""

    def add(self, tokens: Int[Tensor, "B"]) -> None:
        """Count one more token of each row."""
        ones = torch.ones_like(self.generated[:, :1])
        self.generated.scatter_add_(1, tokens.clamp(min=0).unsqueeze(1), ones)

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        self.generated = self.generated.index_select(0, rows)
        self.in_prompt = self.in_prompt.index_select(0, rows)


def process_logits(
    logits: Float[Tensor, "B V"],
    params: SamplingParams,
    counts: TokenCounts | None,
    position: int,
    ends: Sequence[int],
) -> Float[Tensor, "B V"]:
    """The logits after penalties, with minus infinity for tokens that may not be generated.

    Args:
        logits: Scores of the next token.
        params: Penalties, forced and forbidden tokens.
        counts: The tokens so far, if there are penalties.
        position: Number of tokens generated so far.
        ends: Ids that end a sequence, which may not come before `params.minimum` tokens.
    """
    if counts is not None and params.repetition != 1:
        penalty = params.repetition
        lower = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(counts.in_prompt | (counts.generated > 0), lower, logits)

    if counts is not None and (params.presence or params.frequency):
        logits = (
            logits - params.presence * (counts.generated > 0) - params.frequency * counts.generated
        )

    if position in params.forced:
        forced = torch.full_like(logits, -math.inf)
        forced[:, params.forced[position]] = 0
        return forced

    excluded = params.forbidden
    if position < params.minimum:
        excluded = (*excluded, *ends)

    if not excluded:
        return logits

    return logits.index_fill(1, on_device(excluded, logits.device), -math.inf)


@lru_cache(maxsize=64)  # a CUDA graph cannot copy from the host
def on_device(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, "N"]:
    return torch.tensor(ids, dtype=torch.int64, device=device)


def sample_tokens(
    logits: Float[Tensor, "B V"], uniform: Float[Tensor, "B"], params: SamplingParams
) -> Int[Tensor, "B"]:
    """A token for each row, drawn by its number in (0, 1]; with temperature 0 the likeliest.

    Rows with non-finite logits return BROKEN; the caller checks on the host, since checking here
    would force a device sync. On a GPU, `sampling_kernel` computes the same.
    """
    if sampling_kernel.supports(logits):
        return sampling_kernel.sample_rows(logits, uniform, params.row_filters)

    top, likeliest = logits.max(-1)
    if params.temperature == 0:
        tokens = likeliest
    else:
        probability, among = candidates(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )
        tokens = draw(probability, uniform)
        if among is not None:
            tokens = among.gather(1, tokens.unsqueeze(1)).squeeze(1)

    return tokens.where(top.isfinite(), BROKEN)
