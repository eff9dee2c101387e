"""The likeliest tokens of each row (top-k log-probabilities), without sorting the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 256
AT_ONCE = 8  # rows that fit into a CPU's cache


def log_probabilities(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Log-softmax in float32 or better; always a new tensor."""
    # On a CPU this one pass is faster than logsumexp, which reads the logits more often.
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def likeliest(
    logits: Float[Tensor, "B V"], count: int, never: Sequence[int] = ()
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """Log-probabilities of each row's `count` likeliest tokens, likeliest first, and the tokens.

    Tokens in `never` have minus infinity; their probability is not given to the others.
    """
    if logits.is_cpu and len(logits) > AT_ONCE:
        parts = [likeliest(part, count, never) for part in logits.split(AT_ONCE)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    scores = log_probabilities(logits)
    if never:
        scores[:, list(never)] = -math.inf

    count = min(count, scores.shape[1])
    blocks = scores.shape[1] // BLOCK
    if blocks <= count:
        values, tokens = scores.topk(count)
        return values, tokens

    # The likeliest `count` tokens lie in the `count` blocks with the highest maxima, or in the
    # incomplete block at the end.
    body = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (B, N, 256)
    best_blocks = body.amax(-1).topk(count).indices  # (B, K)
    inside = torch.arange(BLOCK, device=scores.device)
    tail = torch.arange(blocks * BLOCK, scores.shape[1], device=scores.device)
    tokens = (best_blocks.unsqueeze(-1) * BLOCK + inside).flatten(1)  # (B, K * 256)
    tokens = torch.cat([tokens, tail.expand(len(tokens), -1)], dim=1)
    values, columns = scores.gather(1, tokens).topk(count)

    return values, tokens.gather(1, columns)
