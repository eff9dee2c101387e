"""One draw from a model's logits: first what may be drawn (temperature, top-k, top-p, min-p), then
a word.

A word is found by one number in (0, 1]: the words' probabilities lie end to end on that line, and
the number falls on one of them. So a row needs one number a word, whatever the vocabulary, and each
row has a series of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def distribution(logits: Float[Tensor, "B V"], **filters: Any) -> Float[Tensor, "B V"]:
    """How likely each word is to be drawn; 0 for the words that `candidates` leaves out."""
    probability, words = candidates(logits, **filters)
    if words is None:
        return probability

    return torch.zeros(logits.shape, dtype=probability.dtype, device=logits.device).scatter(
        -1, words, probability
    )


def candidates(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"] | None]:
    """The words that may be drawn, None for all of them, and how likely each is to be.

    The logits are divided by the temperature (above 0); of the words, the `top_k` likeliest stay;
    of these the fewest, likeliest first, whose probabilities sum to `top_p` or more; and of these
    the ones that are at least `min_p` times as likely as the likeliest.
    """
    V = logits.shape[-1]
    whole = top_k is None and (
        top_p is None or top_p == 1
    )  # all is all, also what is too small for a sum to notice
    kept, words = (
        (logits, None) if whole else logits.topk(min(top_k or V, V))
    )  # (B, k), likeliest first
    # So many small probabilities are summed that float32 would lose the last ones; Apple's GPUs
    # have nothing finer.
    kept = kept.to(torch.float32 if logits.device.type == "mps" else torch.float64)
    kept = (
        kept - kept.amax(-1, keepdim=True)
    ) / temperature  # no temperature makes 0 and less overflow
    probability = kept.softmax(-1)
    if not whole and top_p is not None and top_p < 1:
        before = probability.cumsum(-1) - probability
        probability = probability.where(before < top_p, 0)

    if min_p:
        probability = probability.where(kept >= math.log(min_p), 0)  # the likeliest has 0 there

    return probability / probability.sum(-1, keepdim=True), words


def draw(probability: Float[Tensor, "B V"], uniform: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The word on which each row's chance falls; never one of probability 0."""
    # On a GPU sums are rounded each in its own way: a word of probability 0 may seem to reach
    # further than the last.
    reached = probability.cumsum(-1).where(probability > 0, 0)  # (B, V)
    fallen = uniform.to(reached).unsqueeze(-1) * reached.amax(
        -1, keepdim=True
    )  # (B, 1): their sum is 1 but for rounding
    return (reached >= fallen).to(torch.uint8).argmax(-1)  # the first place that is reached


def row_seeds(seed: int | None, rows: int) -> list[int]:
    """The seed of each row: it depends on the seed and on the row's place alone, not on how many
    rows there are.
    """
    if seed is not None and seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")

    base = np.random.SeedSequence().generate_state(4).tolist() if seed is None else [seed]
    return [
        int(np.random.SeedSequence([*base, row]).generate_state(1, np.uint64)[0])
        for row in range(rows)
    ]


def as_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """The seed of each row: several are the rows' own."""
    seeds = row_seeds(seed, rows) if seed is None or isinstance(seed, int) else list(seed)
    if len(seeds) != rows:
        raise ValueError(f"seed: expected one, or one for each of {rows} rows, not {len(seeds)}")
    if any(each < 0 for each in seeds):
        raise ValueError(f"seed: expected 0 or more, not {min(seeds)}")

    return seeds


def uniforms(seed: int | Sequence[int] | None, rows: int, length: int) -> Float[Tensor, "B L"]:
    """A number in (0, 1] for every word that every row may draw. Several seeds are the rows' own."""
    drawn = [1 - np.random.default_rng(each).random(length) for each in as_seeds(seed, rows)]
    return (
        torch.from_numpy(np.stack(drawn)) if rows else torch.zeros(0, length, dtype=torch.float64)
    )
