"""Prompt logprobs: the log-probability of every prompt token, and its alternatives (echo)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import Alternative, OutputChunk, TokenLogprob
from qkv.serving.engine.sampler import top_logprobs
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
    if not sequence.prompt_tokens:
        add_token(sequence, sequence.token_ids[0], None, [])

    end = min(sequence.computed + count + 1, sequence.prompt_length)
    for first in range(len(sequence.prompt_tokens), end, POSITIONS_AT_ONCE):
        token_ids = sequence.token_ids[first : min(first + POSITIONS_AT_ONCE, end)]
        row = first - 1 - sequence.computed
        logits = logits_of(hidden[row : row + len(token_ids)])
        tokens = torch.tensor(token_ids, device=logits.device)
        scored = top_logprobs(logits, tokens, sequence.request.prompt_logprobs or 0).on_host()
        for token_id, (logprob, alternatives) in zip(token_ids, scored, strict=True):
            add_token(sequence, token_id, logprob, alternatives)


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
