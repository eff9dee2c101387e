"""CUDA graphs of decode steps: captured once per batch size, then replayed.

Sequences come and go between two replays: which ones they are, their positions and where their keys
and values go are numbers that the graph reads from a fixed buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.decode_cuda_graph import steps_are_alike
from qkv.generation.sampling_params import sample_tokens
from qkv.models.model import Model
from qkv.nn.attention.kernels.decode import PART
from qkv.nn.cache import PackedBatch, PagedCache, SequenceGroup
from qkv.nn.cuda_graph import CudaGraph
from qkv.nn.hooks import hook_points_of
from qkv.nn.unchanged import forward_hooks
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import GREEDY, ServingSequence

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes that graphs are captured for; a smaller batch is padded."""
StepOutput = tuple[Float[Tensor, "R V"], Int[Tensor, "R"]]
"""The logits of each row, and its most likely token."""
BUFFERS = 4
"""Host buffers in turn: a step may start before the GPU has read the buffer of the last one."""


class StepGraphs:
    """The captured graphs of one model, by batch size and length of the longest sequence."""

    def __init__(self, model: Model, pages: PagedCache, last_tokens: Int[Tensor, "slots"]) -> None:
        """`last_tokens` holds the last token of each slot; a replay reads and overwrites it."""
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
        self.pool = torch.cuda.graph_pool_handle()

        # Inputs of the graphs: positions, slot mapping and slots, each of the largest batch size
        shape = (3, max(SIZES))
        self.inputs = torch.zeros(shape, dtype=torch.int64, device=last_tokens.device)
        self.host_buffers: list[Tensor] = []
        for _ in range(BUFFERS):
            self.host_buffers.append(torch.zeros(shape, dtype=torch.int64, pin_memory=True))

        self.host_arrays = [buffer.numpy() for buffer in self.host_buffers]
        """The same memory as NumPy arrays, which are faster to write."""
        self.buffer = 0

    @classmethod
    def create(
        cls, model: Model, pages: PagedCache, last_tokens: Int[Tensor, "slots"]
    ) -> StepGraphs | None:
        """Graphs for a model whose decode steps all launch the same kernels; else None."""
        if not steps_are_alike(model):
            return None

        return cls(model, pages, last_tokens)

    def supports(self, batch: ScheduledStep) -> bool:
        """Whether a graph can run the step: decoding only, and without any hook."""
        if batch.prefill or not 0 < len(batch.decode) <= max(SIZES):
            return False
        if any(sequence.request.heads_off for sequence in batch.decode):
            return False

        return not any(points.callbacks for points in self.hook_points) and not any(self.hooks)

    def warm_up(self, max_sequences: int) -> None:
        """Capture the graphs of short sequences for all batch sizes in use."""
        for size in SIZES:
            if size < 2 * max_sequences:
                self.graph_for(size, 1)

    def run(self, sequences: Sequence[ServingSequence]) -> StepOutput:
        """Logits and most likely tokens; the latter are stored as the last tokens already."""
        count = len(sequences)
        self.buffer = (self.buffer + 1) % BUFFERS

        # Fill the host buffer
        positions, slot_mapping, slots = rows = self.host_arrays[self.buffer]
        positions[:count] = [sequence.computed for sequence in sequences]
        slots[:count] = [sequence.slot for sequence in sequences]
        blocks = [sequence.block_table[sequence.computed // BLOCK_SIZE] for sequence in sequences]
        slot_mapping[:count] = np.array(blocks) * BLOCK_SIZE + positions[:count] % BLOCK_SIZE
        rows[:, count:] = [[0], [0], [self.padding_slot]]

        # Replay the smallest graph that is large enough
        size = next(size for size in SIZES if size >= count)
        parts = -(-(int(positions[:count].max()) + 1) // PART)
        graph = self.graph_for(size, 1 << (parts - 1).bit_length())
        logits, token_ids = graph.replay(self.host_buffers[self.buffer])

        return logits[:count], token_ids[:count]

    def graph_for(self, size: int, parts: int) -> CudaGraph[StepOutput]:
        """The graph for `size` sequences of at most `parts` parts of keys, captured if missing."""
        if (size, parts) in self.captured:
            return self.captured[size, parts]

        # The steps before the capture only write padding
        self.inputs[:2] = 0
        self.inputs[2] = self.padding_slot
        step = partial(self.step, size, parts * PART)
        self.captured[size, parts] = CudaGraph(step, [self.inputs], pool=self.pool)

        return self.captured[size, parts]

    def step(self, size: int, longest: int) -> StepOutput:
        """One decode step over the input buffer."""
        positions, slot_mapping, slots = self.inputs[:, :size]
        self.pages.block_table[slots, positions] = slot_mapping.int()
        group = SequenceGroup(0, size, 1, slots, positions + 1, longest)
        state = PackedBatch(self.pages, [group], slot_mapping)
        hidden = self.model.hidden(
            self.last_tokens[slots].unsqueeze(0), positions=positions.unsqueeze(0), state=state
        )
        logits = self.model.logits(hidden[0])
        token_ids = sample_tokens(logits, logits[:, 0], GREEDY)
        # If the sampler draws another token, it is stored after this one.
        self.last_tokens[slots] = token_ids.clamp(min=0)

        return logits, token_ids
