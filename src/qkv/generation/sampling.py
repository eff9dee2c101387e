"""Sampling from logits: temperature, top-k, top-p, min-p, and one draw.

A token is drawn by one number in (0, 1]: the tokens' probabilities lie end to end on that line, in
the order of their ids, and the number falls on one of them. So a row needs one number per token,
whatever the vocabulary, and each row has a series of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor


def distribution(logits: Float[Tensor, "B V"], **filters: Any) -> Float[Tensor, "B V"]:
    """The probability of each token to be drawn; 0 for those that `candidates` leaves out."""
    probability, tokens = candidates(logits, **filters)
    if tokens is None:
        return probability

    return in_vocabulary(probability, tokens, logits.shape[-1])


def in_vocabulary(
    probability: Float[Tensor, "B N"], tokens: Int[Tensor, "B N"], vocabulary: int
) -> Float[Tensor, "B V"]:
    """The probability of every token of the vocabulary, 0 for all but the given ones."""
    zeros = probability.new_zeros(len(probability), vocabulary)
    return zeros.scatter(-1, tokens, probability)


def candidates(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"] | None]:
    """The probabilities of the tokens that may be drawn, and these tokens; None for all of them.

    The tokens are in the order of their ids. Of several tokens as likely as the last one that top-k
    or top-p keeps, any may stay.

    Args:
        logits: Scores of all tokens.
        temperature: Divides the logits; above 0.
        top_k: Keep the k likeliest tokens.
        top_p: Then keep the fewest, likeliest first, whose probabilities sum to p or more.
        min_p: Then keep those at least p times as likely as the likeliest.
    """
    V = logits.shape[-1]
    # With top_p = 1 all tokens stay, also those too small to change a sum.
    cut_by_p = top_p is not None and top_p < 1
    tokens = None
    if top_k is not None or cut_by_p:
        logits, tokens = logits.topk(min(top_k or V, V))  # (B, k), likeliest first

    # float32 would lose the last of many small probabilities; Apple's GPUs have nothing finer.
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    logits = logits.to(exact)
    # Relative to the likeliest, so that no temperature makes the logits overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    probability = logits.softmax(-1)
    if top_p is not None and cut_by_p:
        before = probability.cumsum(-1) - probability
        probability = probability.where(before < top_p, 0)

    if min_p:
        probability = probability.where(logits >= math.log(min_p), 0)

    probability = probability / probability.sum(-1, keepdim=True)
    if tokens is None:
        return probability, None
    if tokens.shape[-1] == V:
        return in_vocabulary(probability, tokens, V), None

    tokens, order = tokens.sort(-1)
    return probability.gather(-1, order), tokens


def draw(probability: Float[Tensor, "B V"], uniform: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The token on which each row's number in (0, 1] falls; never one of probability 0."""
    # A GPU rounds each partial sum differently, so a token of probability 0 may seem to reach
    # further than the last one.
    reached = probability.cumsum(-1).where(probability > 0, 0)  # (B, V)
    total = reached.amax(-1, keepdim=True)  # (B, 1): 1 up to rounding
    target = uniform.to(reached).unsqueeze(-1) * total
    return (reached >= target).to(torch.uint8).argmax(-1)  # the first token that reaches it


def row_seeds(seed: int | None, rows: int) -> list[int]:
    """A seed for each row, which depends on the seed and the row's number alone.

    Args:
        seed: 0 or more; None gives new seeds at every call.
        rows: Number of rows.

    Returns:
        One seed per row.

    Raises:
        ValueError: If the seed is negative.

    Example:
        >>> row_seeds(7, 3) == row_seeds(7, 5)[:3]
        True
    """
    if seed is not None and seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")

    base = np.random.SeedSequence().generate_state(4).tolist() if seed is None else [seed]
    seeds = []
    for row in range(rows):
        state = np.random.SeedSequence([*base, row]).generate_state(1, np.uint64)
        seeds.append(int(state[0]))

    return seeds


def as_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """The seed of each row, from one seed for all or one for each."""
    if seed is None or isinstance(seed, int):
        return row_seeds(seed, rows)

    seeds = list(seed)
    if len(seeds) != rows:
        raise ValueError(f"seed: expected one, or one for each of {rows} rows, not {len(seeds)}")
    if any(number < 0 for number in seeds):
        raise ValueError(f"seed: expected 0 or more, not {min(seeds)}")

    return seeds


class UniformNumbers:
    """The uniform numbers in (0, 1] by which one row draws its tokens, a function of its seed.

    Number n belongs to token n, however many are drawn at a time.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.numbers: list[float] = []

    @cached_property
    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def draw(self, count: int) -> Float64[np.ndarray, "L"]:
        """The next numbers."""
        return 1 - self.generator.random(count)

    def __getitem__(self, position: int) -> float:
        """The number of one position; the same at every call."""
        return self.between(position, position + 1)[0]

    def between(self, first: int, end: int) -> list[float]:
        """The numbers of the positions from `first` to before `end`; the same at every call."""
        missing = end - len(self.numbers)
        if missing > 0:
            self.numbers += self.draw(missing).tolist()

        return self.numbers[first:end]


def uniforms(seed: int | Sequence[int] | None, rows: int, length: int) -> Float[Tensor, "B L"]:
    """A uniform number in (0, 1] for every token that every row may draw."""
    numbers = np.zeros((rows, length))
    for row, row_seed in enumerate(as_seeds(seed, rows)):
        numbers[row] = UniformNumbers(row_seed).draw(length)

    return torch.from_numpy(numbers)
