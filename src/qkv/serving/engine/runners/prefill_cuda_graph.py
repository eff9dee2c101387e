"""CUDA graphs of prefill steps: captured once per number of tokens, then replayed.

The new tokens of all prompts are one row, padded to the size of a graph. Which tokens belong
together, their positions, their past and how their next tokens are sampled are numbers that the
graph reads from a fixed buffer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.generation.kernels.sampling_kernel import sample_rows
from qkv.nn.attention.mask import Causal
from qkv.nn.block import Stack
from qkv.nn.cache import PackedPrompts
from qkv.nn.cuda_graph import CudaGraph
from qkv.nn.decode import paged_stack
from qkv.nn.decode.paged_step import finish_step
from qkv.nn.decode.prompt_attention import tile_tokens
from qkv.serving.engine.runners.prompt_packing import (
    Chunks,
    PackedTokens,
    pack_prompts,
    tiles_of,
    write_pasts,
)
from qkv.serving.engine.runners.runner_cuda_graph import (
    BUFFERS,
    NUMBERS,
    PADDING_NUMBERS,
    StepGraphs,
    StepOutput,
)

SMALLEST = 64
"""Tokens of the smallest graph."""
TOKENS_EACH = 16
"""Tokens of a graph for each sequence that it has room for; the largest has room for all."""
FEWEST = 8
"""Sequences that each graph has room for."""
INTEGERS = 4
"""Id, position, slot mapping and slot of each token."""
ENDS = 2
"""Row of the last token and slot of each sequence whose next token is sampled."""


class GraphSize(NamedTuple):
    """What a graph has room for."""

    tokens: int
    sequences: int
    tiles: int

    @property
    def numbers(self) -> int:
        """Length of the input buffer."""
        return INTEGERS * self.tokens + 3 * self.tiles + (ENDS + NUMBERS) * self.sequences

    def parts(self, buffer: Any) -> tuple[Any, Any, Any, Any]:
        """Tokens, tiles, ends and sampling parameters in a buffer, a NumPy array or a tensor."""
        tokens = INTEGERS * self.tokens
        tiles = tokens + 3 * self.tiles
        ends = tiles + ENDS * self.sequences
        return (
            buffer[:tokens].reshape(INTEGERS, self.tokens),
            buffer[tokens:tiles].reshape(3, self.tiles),
            buffer[tiles:ends].reshape(ENDS, self.sequences),
            buffer[ends : self.numbers].reshape(NUMBERS, self.sequences),
        )


class PrefillGraphs:
    """The captured graphs of one model, by their number of tokens."""

    def __init__(self, steps: StepGraphs, max_sequences: int, max_tokens: int) -> None:
        """Graphs for steps of at most `max_tokens` tokens, beside those of decode steps."""
        self.steps = steps
        self.model = steps.model
        self.pages = steps.pages
        self.table = steps.table
        self.last_tokens = steps.last_tokens
        self.captured: dict[int, CudaGraph[StepOutput]] = {}
        keys = self.pages.keys[0]
        self.tile = tile_tokens(keys.shape[2], keys.dtype)
        self.sizes = graph_sizes(max_sequences, max_tokens, self.tile)

        # Inputs of the graphs: whole numbers, and the bits of float64 numbers
        length = max(size.numbers for size in self.sizes)
        self.inputs = torch.zeros(length, dtype=torch.int64, device=self.last_tokens.device)
        self.host_buffers: list[Tensor] = []
        for _ in range(BUFFERS):
            pinned = self.last_tokens.is_cuda
            self.host_buffers.append(torch.zeros(length, dtype=torch.int64, pin_memory=pinned))

        self.buffer = 0

    @classmethod
    def create(cls, steps: StepGraphs, max_sequences: int, max_tokens: int) -> PrefillGraphs | None:
        """Graphs for a model whose blocks are all computed by fused kernels; else None."""
        stacks = [module for module in steps.model.modules() if isinstance(module, Stack)]
        plain = paged_stack.plain_parts(steps.model).stacks
        keys = steps.pages.keys[0]
        x = keys.new_empty(1, 1, steps.model.config.width)
        indices = steps.last_tokens[:1]
        state = PackedPrompts(steps.pages, indices, indices, indices.expand(3, 1))
        with torch.inference_mode():
            for stack in stacks:
                if stack not in plain or not paged_stack.supports(stack, x, Causal(), state):
                    return None

        return cls(steps, max_sequences, max_tokens)

    def size_for(self, prefill: Chunks) -> GraphSize | None:
        """The smallest graph with room for these prompts, if there is one."""
        tokens = sum(count for _, count in prefill)
        for size in self.sizes:
            if tokens <= size.tokens and len(prefill) <= size.sequences:
                return size

        return None

    def supports(self, prefill: Chunks) -> bool:
        """Whether a graph can read these prompts: without a hook or an ablated head."""
        if self.size_for(prefill) is None or self.steps.hooked():
            return False

        return not any(sequence.request.heads_off for sequence, _ in prefill)

    def warm_up(self) -> None:
        """Capture all graphs."""
        for size in self.sizes:
            self.graph_for(size)

    def run(self, prefill: Chunks) -> StepOutput:
        """Logits and sampled tokens of the sequences that are read to their end.

        The tokens are stored as the last ones already. Rows that need more than their logits to
        be sampled get some token.
        """
        size = self.size_for(prefill)
        assert size is not None
        packed = pack_prompts(prefill, self.table)
        write_pasts(self.pages, prefill)

        self.buffer = (self.buffer + 1) % BUFFERS
        buffer = self.host_buffers[self.buffer][: size.numbers]
        self.fill(buffer.numpy(), size, packed)
        logits, token_ids = self.graph_for(size).replay(buffer)
        count = len(packed.completed)

        return logits[:count], token_ids[:count]

    def fill(self, buffer: Int64[np.ndarray, "L"], size: GraphSize, packed: PackedTokens) -> None:
        """Write the inputs of a graph; what its tokens, tiles and sequences leave is padding."""
        tokens, tiles, ends, numbers = size.parts(buffer)
        padding_slot = self.steps.padding_slot

        # Tokens: padding is written into the first slot of the cache
        count = len(packed.ids)
        new = packed.new
        tokens[:, :count] = packed.ids, new.positions, new.mapping, new.slots
        tokens[:, count:] = [[0], [0], [0], [padding_slot]]

        filled = tiles_of(packed, size.tokens - count, self.tile)
        tiles[:, : filled.shape[1]] = filled
        tiles[:, filled.shape[1] :] = 0

        # Sequences whose next token is sampled
        completed = packed.completed
        slots = packed.slots[completed]
        ends[:, : len(slots)] = packed.ends[completed] - 1, slots
        ends[:, len(slots) :] = [[0], [padding_slot]]
        numbers = numbers.view(np.float64)
        numbers[:-1, : len(slots)] = self.table.filters[:, slots]
        numbers[-1, : len(slots)] = self.table.next_uniforms(slots)
        numbers[:, len(slots) :] = PADDING_NUMBERS

    def graph_for(self, size: GraphSize) -> CudaGraph[StepOutput]:
        """The graph of a size, captured if it is missing."""
        if size.tokens in self.captured:
            return self.captured[size.tokens]

        # The steps before the capture only read and write padding
        padding = np.zeros(size.numbers, dtype=np.int64)
        self.fill(padding, size, pack_prompts([], self.table))
        inputs = self.inputs[: size.numbers]
        inputs.copy_(torch.from_numpy(padding))
        with paged_stack.installed(paged_stack.plain_parts(self.model)):
            self.captured[size.tokens] = CudaGraph(
                partial(self.step, size), [inputs], pool=self.steps.memory_pool()
            )

        return self.captured[size.tokens]

    def step(self, size: GraphSize) -> StepOutput:
        """One prefill step over the input buffer."""
        tokens, tiles, ends, numbers = size.parts(self.inputs)
        ids, positions, slot_mapping, table_rows = tokens
        self.pages.block_table[table_rows, positions] = slot_mapping.int()
        state = PackedPrompts(self.pages, slot_mapping, table_rows, tiles)
        hidden = self.model.hidden(ids.unsqueeze(0), positions=positions.unsqueeze(0), state=state)

        rows, slots = ends
        logits = self.model.logits(hidden[0].index_select(0, rows))
        numbers = numbers.view(torch.float64)
        token_ids = sample_rows(logits, numbers[-1], numbers[:-1])
        # If the sampler draws another token, it is stored after this one.
        finish_step(token_ids, slots, self.last_tokens)

        return logits, token_ids


def graph_sizes(max_sequences: int, max_tokens: int, tile: int) -> list[GraphSize]:
    """Powers of two up to `max_tokens`; the largest has room for all sequences."""
    sizes: list[GraphSize] = []
    tokens = SMALLEST
    while True:
        sequences = min(max_sequences, max(FEWEST, tokens // TOKENS_EACH))
        if tokens >= max_tokens:
            sequences = max_sequences

        # Every sequence and the padding may end with a tile that is not full
        sizes.append(GraphSize(tokens, sequences, tokens // tile + sequences + 1))
        if tokens >= max_tokens:
            return sizes

        tokens *= 2
