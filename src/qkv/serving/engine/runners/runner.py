"""Paged runner: one forward pass over the new tokens of a step, with a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from qkv.models.model import Model
from qkv.models.sites import attention_sites
from qkv.nn.cache import DecoderState, PackedBatch, PagedCache, SequenceGroup
from qkv.nn.decode.cpu_block import CpuBlocks
from qkv.nn.decode.paged_stack import PlainParts, installed, plain_parts
from qkv.nn.hooks import add_hook
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.nn.linear.onednn import Prepacked, prepacking, small_enough
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.runners.prefill_cuda_graph import PrefillGraphs
from qkv.serving.engine.runners.prompt_packing import pack_prompts, write_pasts
from qkv.serving.engine.runners.runner_cuda_graph import StepGraphs
from qkv.serving.engine.sampler import to_device
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence
from qkv.serving.engine.sequence_table import SequenceTable


class Runner:
    """What all runners have in common; by itself the runner of a model that generates nothing."""

    chunk_multiple = 1
    """A prompt may be split anywhere."""
    depth = 0
    """Layers whose heads can be switched off."""
    blocks = 1
    nbytes = 0
    state_blocks: Callable[[ServingSequence], int] | None = None
    """The blocks that a sequence's state counts for, if there are no pages."""
    has_states = False
    """Sequences have a state of their own instead of pages."""

    def __init__(self, model: Model, table: SequenceTable) -> None:
        self.model = model
        self.table = table
        self.weight = next(weight for weight in model.parameters() if weight.is_floating_point())
        self.device = self.weight.device
        self.to_device = partial(to_device, device=self.device)

    def warm_up(self, max_sequences: int) -> None:
        """Prepare what the first request would wait for."""

    def decodes_alone(self, batch: ScheduledStep) -> bool:
        """Whether the sequences that decode run faster without prompts in the same pass."""
        return False

    def samples_decode(self, batch: ScheduledStep) -> bool:
        """Whether `decode` can sample the next tokens of all sequences that decode."""
        return False

    def samples_prefill(self, batch: ScheduledStep) -> bool:
        """Whether `prefill` can read the prompts of a step and sample their next tokens."""
        return False

    def decode(self, batch: ScheduledStep) -> Int[Tensor, "M"]:
        """The next tokens of all sequences that decode, which are then the last tokens."""
        raise NotImplementedError

    def prefill(self, batch: ScheduledStep) -> Int[Tensor, "M"]:
        """The next tokens of the prompts that are read to their end."""
        raise NotImplementedError

    @quantized_activations()
    def run(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """Logits of the next token, one row for each of `batch.logit_rows`."""
        return self.logits(batch, self.hidden(batch))

    def logits(self, batch: ScheduledStep, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "M V"]:
        """Logits of the rows that are sampled."""
        rows = torch.tensor(batch.logit_rows, dtype=torch.int64, device=self.device)
        return self.model.logits(hidden[rows])

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Hidden states of all new tokens, one sequence after the other."""
        raise NotImplementedError

    def fork(
        self, beam: ServingSequence, twin: ServingSequence, copies: Sequence[tuple[int, int]]
    ) -> None:
        """Give a forked beam the keys and values, or the state, of its origin."""
        raise NotImplementedError

    def set_last_tokens(
        self, sequences: Sequence[ServingSequence], token_ids: Int[Tensor, "M"]
    ) -> None:
        """Store the sampled tokens on the device, if the next step reads them there."""


class PagedRunner(Runner):
    """Runs a Transformer whose sequences share one paged KV cache of fixed size."""

    def __init__(
        self,
        model: Model,
        table: SequenceTable,
        cache_bytes: int,
        max_sequences: int,
        max_prefill_tokens: int,
    ) -> None:
        """Create a runner.

        Args:
            model: The model.
            table: The numbers of the running sequences.
            cache_bytes: Bytes of KV cache.
            max_sequences: Sequences that run at once.
            max_prefill_tokens: Prompt tokens per step at most.
        """
        super().__init__(model, table)
        config = model.config
        self.site = next(site for site in attention_sites(model) if site.kind != "encoder")
        """The self-attention of new tokens, whose heads can be switched off."""
        self.depth = self.site.depth
        shape: dict[str, Any] = {
            "depth": self.depth,
            "kv_heads": config.heads if config.kv_heads is None else config.kv_heads,
            "head_width": config.width_of_head,
            "like": self.weight,
        }

        block_bytes = BLOCK_SIZE * PagedCache.bytes_per_slot(**shape)
        self.blocks = cache_bytes // block_bytes
        """Block 0 and the last slot are scratch space for padding rows."""
        if self.blocks < 2:
            raise ValueError(
                f"cache: expected at least {2 * block_bytes:,} bytes for this model, "
                f"not {cache_bytes:,}"
            )

        self.pages = PagedCache(
            self.blocks * BLOCK_SIZE, max_sequences + 1, config.context, **shape
        )
        self.nbytes = self.pages.nbytes
        self.last_tokens = torch.zeros(max_sequences + 1, dtype=torch.int64, device=self.device)
        """The last sampled token of each slot; the host need not know it to run the next step."""
        self.groups_decode = config.sparse != "fixed"
        """The fixed pattern counts from the first key of a row, so its rows cannot be padded."""

        self.matrices: Prepacked | None = None
        if self.device.type == "cpu" and small_enough(model):
            self.matrices = {}

        self.cpu_blocks = CpuBlocks(model)
        """Blocks that decode with few calls; none on a GPU."""
        self.graphs: StepGraphs | None = None
        self.prefill_graphs: PrefillGraphs | None = None
        self.plain_parts = PlainParts([], [])
        """Parts of the model that fused kernels compute on a GPU."""
        if self.device.type == "cuda":
            self.plain_parts = plain_parts(model)
            self.graphs = StepGraphs.create(model, self.pages, self.last_tokens, table)
        if self.graphs is not None:
            self.prefill_graphs = PrefillGraphs.create(
                self.graphs, max_sequences, max_prefill_tokens
            )

    def warm_up(self, max_sequences: int) -> None:
        """Capture the CUDA graphs that are likely needed before the first request."""
        if self.graphs is not None:
            with torch.inference_mode():
                self.graphs.warm_up(max_sequences)
                if self.prefill_graphs is not None:
                    self.prefill_graphs.warm_up()

    def decodes_alone(self, batch: ScheduledStep) -> bool:
        """Whether a CUDA graph can run the sequences that decode."""
        return self.graphs is not None and self.graphs.supports(batch)

    def samples_decode(self, batch: ScheduledStep) -> bool:
        """Whether a CUDA graph samples the tokens of all sequences that decode."""
        if not self.decodes_alone(batch):
            return False

        return bool(self.table.samples_logits[batch.slots].all())

    def reads_alone(self, batch: ScheduledStep) -> bool:
        """Whether a CUDA graph can read the prompts of a step in which no sequence decodes."""
        if self.prefill_graphs is None or batch.decode:
            return False

        return self.prefill_graphs.supports(batch.prefill)

    def samples_prefill(self, batch: ScheduledStep) -> bool:
        """Whether a CUDA graph reads the prompts of a step and samples their next tokens."""
        for sequence in batch.completed_prefill:
            if not self.table.samples_logits[sequence.slot]:
                return False

        if any(sequence.reports_prompt for sequence, _ in batch.prefill):
            return False

        return self.reads_alone(batch)

    def prefill(self, batch: ScheduledStep) -> Int[Tensor, "M"]:
        """The next tokens of the prompts that are read to their end, which are stored."""
        assert self.prefill_graphs is not None
        _, token_ids = self.prefill_graphs.run(batch.prefill)
        return token_ids

    def decode(self, batch: ScheduledStep) -> Int[Tensor, "M"]:
        """The next tokens of all sequences that decode, which are then the last tokens."""
        assert self.graphs is not None
        _, token_ids = self.graphs.run(batch.slots)
        return token_ids

    def run(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """Logits of the next token, one row for each of `batch.logit_rows`."""
        if self.graphs is not None and not batch.prefill and self.decodes_alone(batch):
            logits, _ = self.graphs.run(batch.slots)
            return logits
        if self.prefill_graphs is not None and self.reads_alone(batch):
            logits, _ = self.prefill_graphs.run(batch.prefill)
            return logits

        return super().run(batch)

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Hidden states of all new tokens, one sequence after the other."""
        for sequence, _ in batch.prefill:
            if sequence.computed == 0 and sequence.source is not None:
                self.encode_source(sequence)

        # The packed batch: the ids of decoding sequences are on the device already
        write_pasts(self.pages, batch.prefill)
        ids, positions, slot_mapping, slots = self.pack(batch)
        self.pages.block_table[slots, positions] = slot_mapping.int()
        decoding = len(batch.decode)
        ids = torch.cat([self.last_tokens[slots[:decoding]], ids[decoding:]])

        state: Any = PackedBatch(self.pages, self.groups(batch), slot_mapping)
        if self.model.has_source:
            source = PackedBatch(self.pages, self.source_groups(batch), None)
            state = DecoderState(source, state)

        prepacked: AbstractContextManager[object] = nullcontext()
        if self.matrices is not None:
            prepacked = prepacking(self.matrices)

        fused = installed(self.plain_parts)
        with prepacked, self.heads_off(batch), fused, self.cpu_blocks.installed():
            hidden = self.model.decoder_hidden(
                ids.unsqueeze(0), positions=positions.unsqueeze(0), state=state
            )

        return hidden[0]

    def pack(self, batch: ScheduledStep) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every new token its id, position, slot mapping and sequence slot, each (N,)."""
        decoding = len(batch.decode)
        rows = np.zeros((4, decoding + batch.prefill_tokens), dtype=np.int64)

        # Decoding: of the ids the device alone may have the last one
        rows[1, :decoding] = self.table.computed[batch.slots]
        rows[2, :decoding] = self.table.slot_mapping(batch.slots)
        rows[3, :decoding] = batch.slots

        packed = pack_prompts(batch.prefill, self.table)
        new = packed.new
        rows[:, decoding:] = packed.ids, new.positions, new.mapping, new.slots
        ids, positions_, slot_mapping, slots = self.to_device(rows)

        return ids, positions_, slot_mapping, slots

    def groups(self, batch: ScheduledStep) -> list[SequenceGroup]:
        """Sequences that attend in one call: all that decode, and new prompts of equal length."""
        decode_groups = [batch.decode]
        if not self.groups_decode:
            decode_groups = [[sequence] for sequence in batch.decode]

        groups = GroupList(self.to_device)
        for sequences in decode_groups:
            groups.add(sequences, 1, [sequence.computed + 1 for sequence in sequences])

        for (has_past, count), chunks in groupby(batch.prefill, past_and_count):
            sequences = [sequence for sequence, _ in chunks]
            if not has_past:
                groups.append(SequenceGroup(groups.end, len(sequences), count, None))
                continue

            for sequence in sequences:
                groups.add([sequence], count, [sequence.computed + count])

        return groups

    def source_groups(self, batch: ScheduledStep) -> list[SequenceGroup]:
        """The groups of cross-attention: each sequence attends to its own source."""
        groups = GroupList(self.to_device)
        groups.add(batch.decode, 1, [len(sequence.source or ()) for sequence in batch.decode])
        for sequence, count in batch.prefill:
            groups.add([sequence], count, [len(sequence.source or ())])

        return groups

    def encode_source(self, sequence: ServingSequence) -> None:
        """Run the encoder and write the source's keys and values into the pages."""
        assert sequence.source is not None
        mapping = self.to_device(
            slot_mapping_of(sequence.source_block_table, np.arange(len(sequence.source)))
        )
        self.pages.source_block_table[sequence.slot, : len(mapping)] = mapping.int()
        model: Any = self.model
        model.cache_source(torch.tensor([sequence.source], device=self.device), self.pages, mapping)

    def fork(
        self, beam: ServingSequence, twin: ServingSequence, copies: Sequence[tuple[int, int]]
    ) -> None:
        """Give a forked beam the keys and values of its origin."""
        if copies:
            offsets = np.arange(len(copies) * BLOCK_SIZE)
            old_blocks, new_blocks = zip(*copies, strict=True)
            old = self.to_device(slot_mapping_of(old_blocks, offsets))
            new = self.to_device(slot_mapping_of(new_blocks, offsets))
            self.pages.copy(old, new)

        write_pasts(self.pages, [(twin, 0)])
        self.pages.source_block_table[twin.slot] = self.pages.source_block_table[beam.slot]

    def set_last_tokens(
        self, sequences: Sequence[ServingSequence], token_ids: Int[Tensor, "M"]
    ) -> None:
        """Store the sampled tokens, which the next step reads."""
        slots = self.to_device(np.array([sequence.slot for sequence in sequences]))
        self.last_tokens[slots] = token_ids.clamp(min=0)

    @contextmanager
    def heads_off(self, batch: ScheduledStep) -> Iterator[None]:
        """Zero the ablated heads, each only in the rows of the sequences that ask for it."""
        spans: dict[int, list[tuple[int, int, int]]] = {}
        start = 0
        for sequence, count in batch.new_tokens:
            for layer, head in sequence.request.heads_off:
                spans.setdefault(layer, []).append((head, start, start + count))

            start += count

        def zero_heads(layer: int, value: Float[Tensor, "1 H N D"], name: str) -> Tensor:
            value = value.clone()
            for head, first, last in spans[layer]:
                value[:, head, first:last] = 0

            return value

        with ExitStack() as hooks:
            for layer in spans:
                point = self.site.hook_point(layer, "heads")
                hooks.enter_context(add_hook(self.model, point, partial(zero_heads, layer)))

            yield


def past_and_count(chunk: tuple[ServingSequence, int]) -> tuple[bool, int]:
    """Whether a chunk of a prompt has cached tokens before it, and its length."""
    sequence, count = chunk
    return sequence.computed > 0, count


class GroupList(list[SequenceGroup]):
    """Groups of a packed batch, one after the other."""

    def __init__(self, to_device: Callable[[np.ndarray], Tensor]) -> None:
        super().__init__()
        self.to_device = to_device

    @property
    def end(self) -> int:
        """First row after the last group."""
        return self[-1].end if self else 0

    def add(self, sequences: Sequence[ServingSequence], count: int, lengths: list[int]) -> None:
        """Add a group with `count` new tokens of each sequence, unless there is none."""
        if not sequences:
            return

        rows = [[sequence.slot for sequence in sequences], lengths]
        slots, on_device = self.to_device(np.array(rows, dtype=np.int64))
        longest = max(lengths)
        even = min(lengths) == longest
        self.append(SequenceGroup(self.end, len(sequences), count, slots, on_device, longest, even))


def slot_mapping_of(
    block_table: Sequence[int], positions: Int64[np.ndarray, "N"]
) -> Int64[np.ndarray, "N"]:
    """Index of each position's key and value in the cache."""
    blocks = np.array(block_table, dtype=np.int64)[positions // BLOCK_SIZE]
    return blocks * BLOCK_SIZE + positions % BLOCK_SIZE
