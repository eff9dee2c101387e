"""Prompt logprobs: the log-probability of every prompt token, and its alternatives (echo)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import Alternative, OutputChunk, TokenLogprob
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence

POSITIONS_AT_ONCE = 128
"""Positions whose logits are in memory at a time."""

Logits = Callable[[Tensor], Tensor]
"""From hidden states (N, E) to logits (N, V)."""


class PromptOnly:
    """The strategy of a request for no new tokens: a sequence finishes when its prompt is read."""

    def __init__(self, sequence: ServingSequence) -> None:
        self.sequences = [sequence]

    def advance(self, logits: Float[Tensor, "R V"]) -> list[OutputChunk]:
        """The last chunk."""
        return [self.sequences[0].take_chunk("length")]


def score_prompts(batch: ScheduledStep, hidden: Float[Tensor, "N E"], logits_of: Logits) -> None:
    """Add the logprobs of the prompt tokens that this step reads to their sequences.

    A preempted sequence that is computed again reports nothing twice.
    """
    start = len(batch.decode)
    for sequence, count in batch.prefill:
        if sequence.scores_prompt:
            score_chunk(sequence, count, hidden[start : start + count], logits_of)

        start += count


def score_chunk(
    sequence: ServingSequence, count: int, hidden: Float[Tensor, "T E"], logits_of: Logits
) -> None:
    """Score the prompt tokens that follow the `count` positions of this chunk."""
    scored = sequence.prompt_tokens
    if not scored:
        add_token(sequence, sequence.token_ids[0], None, [])

    end = min(sequence.computed + count + 1, sequence.prompt_length)
    for first in range(len(scored), end, POSITIONS_AT_ONCE):
        token_ids = sequence.token_ids[first : min(first + POSITIONS_AT_ONCE, end)]
        row = first - 1 - sequence.computed
        logits = logits_of(hidden[row : row + len(token_ids)])
        logprobs, alternatives = logprobs_of(logits, token_ids, sequence.request.prompt_logprobs)
        for token in zip(token_ids, logprobs, alternatives, strict=True):
            add_token(sequence, *token)


def add_token(
    sequence: ServingSequence,
    token_id: int,
    logprob: float | None,
    alternatives: Sequence[Alternative],
) -> None:
    """Add a scored token of the prompt to the tokens and the text of a sequence."""
    detokenizer = sequence.text.detokenizer
    offset = detokenizer.offset_of(token_id)
    text = detokenizer.add(token_id)
    sequence.text.certain.append(text)
    sequence.prompt_tokens.append(TokenLogprob(token_id, text, offset, logprob, alternatives))


def logprobs_of(
    logits: Float[Tensor, "T V"], token_ids: Sequence[int], count: int
) -> tuple[list[float], list[list[Alternative]]]:
    """Logprob of the token after each position, and `count` alternatives."""
    logprobs = logits.float().log_softmax(-1)
    top_values, top_ids = logprobs.topk(min(count, logits.shape[1]))
    column = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    own_logprobs: list[float] = logprobs.gather(1, column).squeeze(1).tolist()

    alternatives = []
    for ids, values in zip(top_ids.tolist(), top_values.tolist(), strict=True):
        row = zip(ids, values, strict=True)
        alternatives.append([Alternative(id, value, math.exp(value)) for id, value in row])

    return own_logprobs, alternatives
