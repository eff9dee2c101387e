"""Runner for models without paged keys: the hidden state of an RNN, segments of Transformer-XL.

Every sequence has a state of its own, of constant size, and runs by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.models.model import Model
from qkv.serving.engine.runners.runner import Runner
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence
from qkv.serving.engine.sequence_table import SequenceTable

BLOCK_BYTES = 16384
"""States are counted in blocks of this size, so that the scheduler treats them as pages."""


class StatefulRunner(Runner):
    """Runs an RNN or a Transformer-XL, one sequence at a time."""

    has_states = True

    def __init__(self, model: Model, table: SequenceTable, cache_bytes: int) -> None:
        super().__init__(model, table)
        self.blocks = cache_bytes // BLOCK_BYTES
        if self.blocks < 2:
            raise ValueError(
                f"cache: expected at least {2 * BLOCK_BYTES:,} bytes, not {cache_bytes:,}"
            )

        self.nbytes = self.blocks * BLOCK_BYTES
        self.memory = getattr(model.config, "memory", 0)
        if self.memory:
            self.chunk_multiple = self.model.config.context  # one segment, as in training

    def state_blocks(self, sequence: ServingSequence) -> int:
        """Number of blocks that the state of a sequence counts for."""
        config = self.model.config
        if self.model.has_source:
            numbers = config.width * (4 * config.depth + 2 * len(sequence.source or ()))
        else:  # the memory and the current segment
            numbers = config.depth * config.width * (self.memory + config.context)

        return -(-numbers * self.weight.element_size() // BLOCK_BYTES)

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Hidden states of all new tokens, one sequence after the other.

        The states before are not changed, so that the engine can undo a failed step.
        """
        parts: list[Tensor] = []
        for sequence, count in batch.new_tokens:
            sequence.model_state = self.state_of(sequence)
            new_ids = sequence.token_ids[sequence.computed : sequence.computed + count]
            ids = torch.tensor([new_ids], device=self.device)
            parts.append(self.model.decoder_hidden(ids, state=sequence.model_state)[0])

        return torch.cat(parts)

    def state_of(self, sequence: ServingSequence) -> Any:
        """A copy of the sequence's state, or a new one."""
        if sequence.model_state is not None:
            return copied_state(sequence.model_state)
        if sequence.source is None:
            return self.model.start()

        return self.model.start(torch.tensor([sequence.source], device=self.device))

    def fork(
        self, beam: ServingSequence, twin: ServingSequence, copies: Sequence[tuple[int, int]]
    ) -> None:
        """Give a forked beam the state of its origin; there are no blocks to copy."""
        twin.model_state = copied_state(beam.model_state)


def copied_state(state: Any) -> Any:
    """A shallow copy with its own dictionaries; tensors are replaced, never changed in place."""
    other = copy.copy(state)
    for name, value in vars(state).items():
        if isinstance(value, dict):
            vars(other)[name] = dict(value)

    return other
