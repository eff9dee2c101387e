"""Prompt logprobs: the log-probability of every prompt token, and its alternatives (echo)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import Alternative, TokenLogprob
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence

POSITIONS_AT_ONCE = 128
"""Positions whose logits are in memory at a time."""

Logits = Callable[[Tensor], Tensor]
"""From hidden states (N, E) to logits (N, V)."""


def wants_prompt_logprobs(batch: ScheduledStep) -> bool:
    """Whether a sequence of the step reads a prompt whose logprobs were requested."""
    return any(sequence.request.prompt_logprobs is not None for sequence, _ in batch.prefill)


def score_prompts(batch: ScheduledStep, hidden: Float[Tensor, "N E"], logits_of: Logits) -> None:
    """Add the logprobs of the prompt tokens that this step reads to their sequences.

    A preempted sequence that is computed again reports nothing twice.
    """
    start = len(batch.decode)
    for sequence, count in batch.prefill:
        if sequence.request.prompt_logprobs is not None and sequence.sample == 0:
            score_chunk(sequence, count, hidden[start : start + count], logits_of)

        start += count


def score_chunk(
    sequence: ServingSequence, count: int, hidden: Float[Tensor, "T E"], logits_of: Logits
) -> None:
    """Score the prompt tokens that follow the `count` positions of this chunk."""
    assert sequence.request.prompt_logprobs is not None
    if sequence.prompt_scored == 0:
        sequence.new_tokens.append(TokenLogprob(sequence.token_ids[0], None, []))
        sequence.prompt_scored = 1

    end = min(sequence.computed + count + 1, sequence.prompt_length)
    for first in range(sequence.prompt_scored, end, POSITIONS_AT_ONCE):
        token_ids = sequence.token_ids[first : min(first + POSITIONS_AT_ONCE, end)]
        row = first - 1 - sequence.computed
        logits = logits_of(hidden[row : row + len(token_ids)])
        sequence.new_tokens += logprobs_of(logits, token_ids, sequence.request.prompt_logprobs)
        sequence.prompt_scored += len(token_ids)


def logprobs_of(
    logits: Float[Tensor, "T V"], token_ids: Sequence[int], count: int
) -> list[TokenLogprob]:
    """Logprobs of the token after each position, with `count` alternatives."""
    logprobs = logits.float().log_softmax(-1)
    top_values, top_ids = logprobs.topk(min(count, logits.shape[1]))
    column = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    own_logprobs = logprobs.gather(1, column).squeeze(1)

    scored: list[TokenLogprob] = []
    for token_id, logprob, ids, values in zip(
        token_ids, own_logprobs.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
    ):
        alternatives = []
        for other, value in zip(ids, values, strict=True):
            alternatives.append(Alternative(other, value, math.exp(value)))

        scored.append(TokenLogprob(token_id, logprob, alternatives))

    return scored
