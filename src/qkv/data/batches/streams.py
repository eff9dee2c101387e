"""Streams: the rows of consecutive batches continue the same texts, for models with a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qkv.data.batches.batch import Batch
from qkv.data.batches.causal import CausalData
from qkv.data.batches.order import epoch_and_index, random_generator


@dataclass(eq=False, repr=False)
class StreamedData(CausalData):
    """Causal batches where row r of a step reads on where row r of the step before ended.

    In each epoch the tokens are cut into as many streams of equal length as there are rows, and
    every stream into segments of `context` tokens, one a step. What remains, less than a segment
    for each stream, is left out before the first and after the last stream, differently in every
    epoch. `ordered`, for validation, is that of `CausalData`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        positions = len(self.tokens) - 1
        self.segments = positions // (self.rows * self.context)
        if not self.segments:
            raise ValueError(
                f"carry_memory: {len(self.tokens):,} tokens do not fill {self.rows} streams with a "
                f"segment of {self.context}; give more data, or smaller batches"
            )

        self.spare = positions - self.segments * self.rows * self.context
        self.steps_per_epoch = self.segments
        self.order_version = 1

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        epoch, segment = epoch_and_index(step, self.segments)
        random = random_generator("windows", self.seed, epoch)
        offset = int(random.integers(self.spare + 1))
        length = self.segments * self.context
        begins = [offset + row * length + segment * self.context for row in range(self.rows)]
        batch = self.build(begins, [0] * self.rows)

        return replace(batch, first_stream=0, segment=segment)
