"""Runner for models without paged keys: the hidden state of an RNN, segments of Transformer-XL.

Every sequence has a state of its own, of constant size, and runs by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models import GPT, RNN
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence

BLOCK_BYTES = 16384
"""States are counted in blocks of this size, so that the scheduler treats them as pages."""


class StatefulRunner:
    """Runs an RNN or a Transformer-XL, one sequence at a time."""

    def __init__(self, model: GPT | RNN, cache_bytes: int, max_sequences: int) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.depth: int = model.config.depth
        self.blocks = cache_bytes // BLOCK_BYTES
        if self.blocks < 2:
            raise ValueError(
                f"cache: expected at least {2 * BLOCK_BYTES:,} bytes, not {cache_bytes:,}"
            )

        self.nbytes = self.blocks * BLOCK_BYTES
        self.chunk_multiple = 1
        if isinstance(model, GPT):
            self.chunk_multiple = model.config.context  # one segment, as in training

    def state_blocks(self, sequence: ServingSequence) -> int:
        """Number of blocks that the state of a sequence counts for."""
        config: Any = self.model.config
        if isinstance(self.model, GPT):  # the memory and the current segment
            numbers = config.depth * config.width * (config.memory + config.context)
        else:
            numbers = config.width * (4 * config.depth + 2 * len(sequence.source or ()))

        return -(-numbers * next(self.model.parameters()).element_size() // BLOCK_BYTES)

    def warm_up(self, max_sequences: int) -> None:
        """Nothing to prepare."""

    def decode_greedy(self, batch: ScheduledStep) -> None:
        """None: the sampler chooses every token."""

    def run(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """Logits of the next token, one row for each of `batch.logit_rows`."""
        return self.logits(batch, self.hidden(batch))

    def logits(self, batch: ScheduledStep, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "M V"]:
        """Logits of the rows that are sampled."""
        rows = torch.tensor(batch.logit_rows, dtype=torch.int64, device=self.device)
        return self.model.logits(hidden[rows])

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Hidden states of all new tokens, one sequence after the other.

        States are only replaced once all sequences have run, so that a failed step changes nothing.
        """
        parts: list[Tensor] = []
        states: list[Any] = []

        for sequence, count in batch.new_tokens:
            state = self.state_of(sequence)
            new_ids = sequence.token_ids[sequence.computed : sequence.computed + count]
            ids = torch.tensor([new_ids], device=self.device)
            parts.append(self.model.decoder_hidden(ids, state=state)[0])
            states.append(state)

        for sequence, state in zip(batch.sequences, states, strict=True):
            sequence.model_state = state

        return torch.cat(parts)

    def state_of(self, sequence: ServingSequence) -> Any:
        """A copy of the sequence's state, or a new one."""
        if sequence.model_state is not None:
            return copied_state(sequence.model_state)
        if isinstance(self.model, GPT):
            return self.model.start()

        return self.model.start(torch.tensor([sequence.source], device=self.device))

    def fork(
        self, beam: ServingSequence, twin: ServingSequence, copies: Sequence[tuple[int, int]]
    ) -> None:
        """Give a forked beam the state of its origin; there are no blocks to copy."""
        twin.model_state = copied_state(beam.model_state)

    def set_last_tokens(
        self, sequences: Sequence[ServingSequence], token_ids: Int[Tensor, "M"]
    ) -> None:
        """Nothing to store: the host has every token before the next step."""


def copied_state(state: Any) -> Any:
    """A shallow copy with its own dictionaries; tensors are replaced, never changed in place."""
    other = copy.copy(state)
    for name, value in vars(state).items():
        if isinstance(value, dict):
            vars(other)[name] = dict(value)

    return other
