"""One draw from a model's logits: first what may be drawn (temperature, top-k, top-p), then a word.

A word is found by one number in (0, 1]: the words' probabilities lie end to end on that line, and the number falls on
one of them. So a row needs one number a word, whatever the vocabulary, and each row has a series of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_choice(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature: expected 0 (always the likeliest word) or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: expected 1 or more, not {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected more than 0 and at most 1, not {top_p}")


def choose(
    logits: Float[Tensor, "B V"],
    chance: Float[Tensor, "B"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Tensor, "B"]:
    """A word for each row, found by its chance in (0, 1]; with temperature 0 the likeliest, the first of equals."""
    check_choice(temperature, top_k, top_p)
    if not bool(logits.amax(-1).isfinite().all()):
        raise ValueError("logits: a row has no likeliest word (nan or infinite); the model's weights are broken")
    if temperature == 0:
        return logits.argmax(-1)
    return draw(distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p), chance)


def distribution(
    logits: Float[Tensor, "B V"], *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "B V"]:
    """How likely each word is to be drawn.

    The logits are divided by the temperature (above 0); of the words, the `top_k` likeliest stay; and of these the
    fewest, likeliest first, whose probabilities sum to `top_p` or more.
    """
    # So many small probabilities are summed that float32 would lose the last ones; Apple's GPUs have nothing finer.
    logits = logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # no temperature makes 0 and less overflow
    if top_k is None and top_p is None:
        return logits.softmax(-1)
    V = logits.shape[-1]
    kept, words = logits.topk(min(top_k or V, V))  # (B, k), likeliest first
    probability = kept.softmax(-1)
    if top_p is not None and top_p < 1:  # all is all, also what is too small for a sum to notice
        before = probability.cumsum(-1) - probability
        probability = probability.where(before < top_p, 0)
        probability = probability / probability.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, words, probability)  # (B, k) -> (B, V)


def draw(probability: Float[Tensor, "B V"], chance: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The word on which each row's chance falls; never one of probability 0."""
    # On a GPU sums are rounded each in its own way: a word of probability 0 may seem to reach further than the last.
    reached = probability.cumsum(-1).where(probability > 0, 0)  # (B, V)
    fallen = chance.to(reached).unsqueeze(-1) * reached.amax(
        -1, keepdim=True
    )  # (B, 1): their sum is 1 but for rounding
    return (reached >= fallen).to(torch.uint8).argmax(-1)  # the first place that is reached


def row_seeds(seed: int | None, rows: int) -> list[int]:
    """The seed of each row: it depends on the seed and on the row's place alone, not on how many rows there are."""
    if seed is not None and seed < 0:
        raise ValueError(f"seed: expected 0 or more, not {seed}")
    base = np.random.SeedSequence().generate_state(4).tolist() if seed is None else [seed]
    return [int(np.random.SeedSequence([*base, row]).generate_state(1, np.uint64)[0]) for row in range(rows)]


def chances(seed: int | Sequence[int] | None, rows: int, length: int) -> Float[Tensor, "B L"]:
    """A number in (0, 1] for every word that every row may draw. Several seeds are the rows' own."""
    seeds = row_seeds(seed, rows) if seed is None or isinstance(seed, int) else list(seed)
    if len(seeds) != rows:
        raise ValueError(f"seed: expected one, or one for each of {rows} rows, not {len(seeds)}")
    if any(each < 0 for each in seeds):
        raise ValueError(f"seed: expected 0 or more, not {min(seeds)}")
    drawn = [1 - np.random.default_rng(each).random(length) for each in seeds]
    return torch.from_numpy(np.stack(drawn)) if rows else torch.zeros(0, length, dtype=torch.float64)
