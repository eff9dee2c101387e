"""CUDA graphs of decode steps: captured once per batch size, then replayed.

Sequences come and go between two replays: which ones they are, their positions and where their keys
and values go are numbers that the graph reads from a fixed buffer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.decode_cuda_graph import steps_are_alike
from qkv.generation.kernels import sampling_kernel
from qkv.generation.kernels.sampling_kernel import RowFilters, sample_rows
from qkv.models.model import Model
from qkv.nn.attention.kernels.decode import PART
from qkv.nn.cache import PackedBatch, PagedCache, SequenceGroup
from qkv.nn.cuda_graph import CudaGraph
from qkv.nn.decode.paged_stack import installed, plain_parts
from qkv.nn.decode.paged_step import begin_step, finish_step
from qkv.nn.hooks import hook_points_of
from qkv.nn.unchanged import forward_hooks
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence_table import SequenceTable, Slots

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes that graphs are captured for; a smaller batch is padded."""
StepOutput = tuple[Float[Tensor, "R V"], Int[Tensor, "R"]]
"""The logits of each row, and its sampled token."""
INTEGERS = 3
"""Position, slot mapping and slot of each row."""
NUMBERS = len(RowFilters._fields) + 1
"""The sampling parameters of each row, and its uniform number."""
PADDING_NUMBERS = np.array([[*RowFilters.create(0, None, None, None), 1.0]]).T
"""Padding rows are greedy."""
BUFFERS = 4
"""Host buffers in turn: a step may start before the GPU has read the buffer of the last one."""


class StepGraphs:
    """The captured graphs of one model, by batch size and length of the longest sequence."""

    def __init__(
        self,
        model: Model,
        pages: PagedCache,
        last_tokens: Int[Tensor, "slots"],
        table: SequenceTable,
    ) -> None:
        """`last_tokens` holds the last token of each slot; a replay reads and overwrites it."""
        self.table = table
        self.model = model
        self.pages = pages
        self.last_tokens = last_tokens
        self.captured: dict[tuple[int, int], CudaGraph[StepOutput]] = {}
        self.hook_points: list[Any] = []
        for module in model.modules():
            points = hook_points_of(module)
            if points is not None:
                self.hook_points.append(points)

        self.hooks = forward_hooks(*model.modules())
        self.padding_slot = pages.block_table.shape[0] - 1
        self.pool: Any = None

        # Inputs of the graphs in one buffer: whole numbers, then the bits of float64 numbers
        shape = (INTEGERS + NUMBERS, max(SIZES))
        self.inputs = torch.zeros(shape, dtype=torch.int64, device=last_tokens.device)
        self.host_buffers: list[Tensor] = []
        self.host_arrays: list[tuple[np.ndarray, np.ndarray]] = []
        """The same memory as NumPy arrays, which are faster to write."""
        for _ in range(BUFFERS):
            buffer = torch.zeros(shape, dtype=torch.int64, pin_memory=last_tokens.is_cuda)
            array = buffer.numpy()
            self.host_buffers.append(buffer)
            self.host_arrays.append((array[:INTEGERS], array[INTEGERS:].view(np.float64)))

        self.buffer = 0

    @classmethod
    def create(
        cls,
        model: Model,
        pages: PagedCache,
        last_tokens: Int[Tensor, "slots"],
        table: SequenceTable,
    ) -> StepGraphs | None:
        """Graphs for a model whose decode steps all launch the same kernels; else None."""
        logits = pages.keys[0].new_empty(1, model.config.vocabulary)
        if not steps_are_alike(model) or not sampling_kernel.supports(logits):
            return None

        return cls(model, pages, last_tokens, table)

    def supports(self, batch: ScheduledStep) -> bool:
        """Whether a graph can run the sequences that decode: without any hook."""
        if not 0 < len(batch.decode) <= max(SIZES):
            return False
        if self.table.ablated[batch.slots].any():
            return False

        return not self.hooked()

    def hooked(self) -> bool:
        """Whether any part of the model has a hook."""
        return any(points.callbacks for points in self.hook_points) or any(self.hooks)

    def memory_pool(self) -> Any:
        """The memory of all graphs, one of which runs at a time."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return self.pool

    def warm_up(self, max_sequences: int) -> None:
        """Capture the graphs of short sequences for all batch sizes in use."""
        for size in SIZES:
            if size < 2 * max_sequences:
                self.graph_for(size, 1)

    def run(self, slots: Slots) -> StepOutput:
        """Logits and sampled tokens; the latter are stored as the last tokens already.

        Rows that need more than their logits to be sampled get some token.
        """
        count = len(slots)
        table = self.table
        self.buffer = (self.buffer + 1) % BUFFERS

        # Fill the host buffer
        integers, numbers = self.host_arrays[self.buffer]
        positions = table.computed[slots]
        integers[0, :count] = positions
        integers[1, :count] = table.slot_mapping(slots)
        integers[2, :count] = slots
        integers[:, count:] = [[0], [0], [self.padding_slot]]
        numbers[:-1, :count] = table.filters[:, slots]
        numbers[-1, :count] = table.next_uniforms(slots)
        numbers[:, count:] = PADDING_NUMBERS

        # Replay the smallest graph that is large enough
        size = next(size for size in SIZES if size >= count)
        parts = -(-(int(positions.max()) + 1) // PART)
        graph = self.graph_for(size, 1 << (parts - 1).bit_length())
        logits, token_ids = graph.replay(self.host_buffers[self.buffer])

        return logits[:count], token_ids[:count]

    def graph_for(self, size: int, parts: int) -> CudaGraph[StepOutput]:
        """The graph for `size` sequences of at most `parts` parts of keys, captured if missing."""
        if (size, parts) in self.captured:
            return self.captured[size, parts]

        # The steps before the capture only write padding
        self.inputs.zero_()
        self.inputs[2] = self.padding_slot
        step = partial(self.step, size, parts * PART)
        with installed(plain_parts(self.model)):
            self.captured[size, parts] = CudaGraph(step, [self.inputs], pool=self.memory_pool())

        return self.captured[size, parts]

    def step(self, size: int, longest: int) -> StepOutput:
        """One decode step over the input buffer."""
        positions, slot_mapping, slots = self.inputs[:INTEGERS, :size]
        numbers = self.inputs[INTEGERS:, :size].view(torch.float64)
        ids, lengths = begin_step(
            positions, slot_mapping, slots, self.last_tokens, self.pages.block_table
        )
        group = SequenceGroup(0, size, 1, slots, lengths, longest, even=False)
        state = PackedBatch(self.pages, [group], slot_mapping)
        hidden = self.model.hidden(ids.unsqueeze(0), positions=positions.unsqueeze(0), state=state)
        logits = self.model.logits(hidden[0])
        token_ids = sample_rows(logits, numbers[-1], numbers[:-1])
        # If the sampler draws another token, it is stored after this one.
        finish_step(token_ids, slots, self.last_tokens)

        return logits, token_ids
