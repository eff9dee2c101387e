"""Run, for models whose memory has no keys that could lie in pages: an RNN's hidden vectors,
Transformer-XL's segments.

Every text keeps a state of its own, of one size from its beginning to its end, and reads by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models import GPT, RNN
from qkv.serving.engine.runner import ends
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence

BYTES = 16384
"""Of a block: states are counted in them, as pages are."""


class StatefulRunner:
    def __init__(self, model: GPT | RNN, cache: int, rows: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.blocks = cache // BYTES
        if self.blocks < 2:
            raise ValueError(f"cache: expected at least {2 * BYTES:,} bytes, not {cache:,}")

        self.part = (
            model.config.context if isinstance(model, GPT) else 1
        )  # a segment, as in training
        self.nbytes = self.blocks * BYTES

    def states(self, text: ServingSequence) -> int:
        """How many blocks the state of a text takes."""
        config: Any = self.model.config
        if isinstance(self.model, GPT):
            numbers = (
                config.depth * config.width * (config.memory + config.context)
            )  # and the segment that is read
        else:
            numbers = config.width * (4 * config.depth + 2 * len(text.source or ()))

        return -(-numbers * next(self.model.parameters()).element_size() // BYTES)

    def say(self, batch: ScheduledStep) -> None:
        """Nothing is said at once."""

    def run(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        return self.model.logits(self.hidden(batch)[ends(batch, self.device)])

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Of all new tokens, one text after the other. States change when all have been read, or
        none does.
        """
        parts, states = [], []
        for text, count in [(text, 1) for text in batch.speaking] + batch.reading:
            state = self.begin(text) if text.state is None else copied(text.state)
            ids = torch.tensor([text.ids[text.read : text.read + count]], device=self.device)
            segment = (
                self.model.config.context if isinstance(self.model, GPT) else count
            )  # as it was trained to
            parts += [self.model.hidden(part, state=state)[0] for part in ids.split(segment, dim=1)]
            states.append(state)

        for text, state in zip(batch.texts, states, strict=True):
            text.state = state

        return torch.cat(parts)

    def begin(self, text: ServingSequence) -> Any:
        if isinstance(self.model, GPT):
            return self.model.start()

        return self.model.start(torch.tensor([text.source], device=self.device))

    def branch(
        self, text: ServingSequence, twin: ServingSequence, copies: Sequence[tuple[int, int]]
    ) -> None:
        twin.state = copied(text.state)

    def hear(self, texts: Sequence[ServingSequence], words: Int[Tensor, "M"]) -> None:
        """The host knows the words."""


def copied(state: Any) -> Any:
    """Its tensors are never changed, only replaced."""
    other = copy.copy(state)
    other.__dict__.update(
        {name: dict(value) for name, value in vars(state).items() if isinstance(value, dict)}
    )
    return other
