"""Prompts read aloud: of every token, how likely it was, and what else could have stood there (echo
with logprobs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import Alternative, TokenLogprob
from qkv.serving.engine.sequence import ServingSequence

if TYPE_CHECKING:
    from qkv.serving.engine.engine import Engine
    from qkv.serving.engine.scheduler import ScheduledStep

PLACES = 128  # whose logits are made at a time


def score_prompt(engine: Engine, batch: ScheduledStep) -> Float[Tensor, "M V"]:
    """Run a step, and tell what its prompts hold. A text that was read before, and gave way, tells
    nothing twice.
    """
    assert engine.runner is not None
    hidden = engine.runner.hidden(batch)
    begin, last = len(batch.speaking), list(range(len(batch.speaking)))

    for text, count in batch.reading:
        if text.ask.prompt_top is not None and text.row == 0:
            tell(engine, text, count, hidden[begin : begin + count])

        begin += count
        if text.read + count == text.positions:
            last.append(begin - 1)
            if text.fresh and not text.drawn:
                engine.news(text.ticket, text.piece(None))

    return engine.says.logits(hidden[torch.tensor(last, dtype=torch.int64, device=hidden.device)])


def tell(engine: Engine, text: ServingSequence, count: int, hidden: Float[Tensor, "T E"]) -> None:
    """The tokens that stand after the places that are read now, as far as the prompt goes."""
    assert text.ask.prompt_top is not None
    if text.told == 0:
        text.fresh.append(TokenLogprob(text.ids[0], None, []))
        text.told = 1

    for first in range(text.told, min(text.read + count, text.prompt - 1) + 1, PLACES):
        tokens = text.ids[first : min(first + PLACES, text.read + count + 1, text.prompt)]
        place = first - 1 - text.read
        text.fresh += likely(
            engine.says.logits(hidden[place : place + len(tokens)]), tokens, text.ask.prompt_top
        )
        text.told += len(tokens)


def likely(logits: Float[Tensor, "T V"], ids: Sequence[int], count: int) -> list[TokenLogprob]:
    """Of the tokens that stand after each place."""
    logprobs = logits.float().log_softmax(-1)
    likeliest, others = logprobs.topk(min(count, logits.shape[1]))
    own = logprobs.gather(1, torch.tensor(ids, device=logits.device).unsqueeze(1)).squeeze(1)
    found = []

    for id, logprob, tokens, values in zip(
        ids, own.tolist(), others.tolist(), likeliest.tolist(), strict=True
    ):
        both = zip(tokens, values, strict=True)
        found.append(
            TokenLogprob(
                id, logprob, [Alternative(token, value, math.exp(value)) for token, value in both]
            )
        )

    return found
