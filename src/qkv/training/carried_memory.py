"""Memory carried from one training step to the next, as Transformer-XL is trained.

The rows of consecutive batches continue the same streams of text (`StreamedData`). What the model
remembers after a step, without its gradient, is where it begins in the next one: the hidden states
of Transformer-XL's last segment, or the hidden vectors of a recurrent language model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.nn.cache.interface import Cache


class CarriedMemory:
    """The memory of all streams before a segment, and after it.

    Reading does not change it, so a micro-batch that ran out of memory can be read again. It is
    empty before the first segment of an epoch, and where the batch before was left out.
    """

    def __init__(self) -> None:
        self.segment: int | None = None
        """The segment that the streams are at."""
        self.before: dict[str, Tensor] = {}
        """Tensors of all streams, (rows, ...), before that segment."""
        self.after: dict[str, dict[int, Tensor]] = {}
        """Tensors after it, of each micro-batch by its first stream."""

    def read(self, batch: Batch, state: Cache) -> None:
        """Let a new state continue from the memory of the batch's streams."""
        self.turn_to(batch.segment)
        if not self.before:
            return

        first = batch.first_stream
        assert first is not None
        rows = slice(first, first + batch.rows)
        device = batch.ids.device
        state.continue_from({name: x[rows].to(device) for name, x in self.before.items()})

    def write(self, batch: Batch, state: Cache) -> None:
        """Keep what the state remembers after the batch."""
        assert batch.first_stream is not None
        for name, rows in state.carried().items():
            self.after.setdefault(name, {})[batch.first_stream] = rows

    def turn_to(self, segment: int) -> None:
        """Go on to the next segment, or begin with empty memory anywhere else."""
        if segment == self.segment:
            return

        follows = self.segment is not None and segment == self.segment + 1
        self.before = self.joined() if follows else {}
        self.after = {}
        self.segment = segment

    def joined(self) -> dict[str, Tensor]:
        """The memory of all streams after the segment."""
        return {
            name: torch.cat([parts[first] for first in sorted(parts)])
            for name, parts in self.after.items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores: the next segment, and the memory before it."""
        if self.segment is None:
            return {}
        if not self.after:  # restored, and no step since
            return {"segment": torch.tensor(self.segment), **named(self.before)}

        return {"segment": torch.tensor(self.segment + 1), **named(self.joined())}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set the memory to what `tensors` returned; to nothing for an older checkpoint."""
        self.after = {}
        self.before = {}
        self.segment = None
        for name, tensor in tensors.items():
            if name == "segment":
                self.segment = int(tensor)
            else:
                self.before[name.removeprefix(STATE)] = tensor


STATE = "state."


def named(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    return {STATE + name: tensor for name, tensor in memory.items()}
