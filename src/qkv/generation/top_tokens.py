"""The likeliest words of each row, without a sort of the whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 256
AT_ONCE = 8  # rows that a CPU's cache can hold


def log_probabilities(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """At least in float32; a new tensor."""
    # On a CPU this one pass is faster than logsumexp, which writes nothing but walks more often.
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def likeliest(
    logits: Float[Tensor, "B V"], count: int, never: Sequence[int] = ()
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """Log-probabilities of each row's `count` likeliest words (or all there are), likeliest first;
    and the words.

    What may never be said has minus infinity; its probability is not given to the other words.
    """
    if logits.is_cpu and len(logits) > AT_ONCE:
        parts = [likeliest(part, count, never) for part in logits.split(AT_ONCE)]
        return torch.cat([values for values, _ in parts]), torch.cat([words for _, words in parts])

    scores = log_probabilities(logits)
    if never:
        scores[:, list(never)] = -math.inf

    count = min(count, scores.shape[1])
    blocks = scores.shape[1] // BLOCK
    if blocks <= count:
        values, words = scores.topk(count)
        return values, words

    # So many words lie in at most so many blocks, those of the highest peaks; what is after the
    # last block comes along.
    body = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (B, N, 256)
    high = body.amax(-1).topk(count).indices  # (B, K)
    inside = torch.arange(BLOCK, device=scores.device)
    tail = torch.arange(blocks * BLOCK, scores.shape[1], device=scores.device)
    words = (high.unsqueeze(-1) * BLOCK + inside).flatten(1)  # (B, K * 256)
    words = torch.cat([words, tail.expand(len(words), -1)], dim=1)
    values, places = scores.gather(1, words).topk(count)

    return values, words.gather(1, places)
