"""Decoding with a CUDA graph: one step is captured and replayed, and the host never waits for it.

The host reads each token while the next ones are already being computed.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.data.batches.padding import pad_rows, up_to
from qkv.generation.generation_batch import GenerationBatch, Steps
from qkv.generation.kernels.finish_step import StepCounters, token_memory
from qkv.generation.kernels.prompt_cuda_graph import PromptGraphs
from qkv.generation.prefill import next_logits
from qkv.generation.sampling_params import on_device, process_logits, sample_tokens
from qkv.models.model import Model
from qkv.nn.cache import KeyValueCache, StaticCache
from qkv.nn.cuda_graph import CudaGraph
from qkv.nn.decode import decode_step
from qkv.nn.hooks import has_hooks
from qkv.nn.unchanged import all_unchanged, snapshot

graphs: WeakKeyDictionary[nn.Module, tuple[GraphKey, DecodeGraph]] = WeakKeyDictionary()
"""The last graph of each model, which holds the memory of its cache."""
AHEAD = 2  # launches that the GPU may be ahead of the host
AT_ONCE = 4  # steps that one launch of the graph runs
NO_END = 4096  # slots for a sequence whose context has no end: all are allocated at once
WORTH = 32  # with fewer new tokens, capturing a step is not worth its time
TICKETS = 1024  # programs of a kernel that can add their sums
TILE = 64  # capacities are multiples of it, so that similar lengths share a graph


def supports(model: Any, batch: GenerationBatch) -> bool:
    """Whether a graph can generate the batch, and is worth its capture."""
    if not batch.sequences or not steps_are_alike(model) or has_hooks(model):
        return False  # a hook must see every token

    return tokens_that_fit(model, batch) > batch.sampling_params.steady_from + WORTH


def steps_are_alike(model: Any) -> bool:
    """True if all decode steps of a model on a GPU launch the same kernels.

    There is no sparse mask, there are no positions relative to the last slot, and no module was
    changed: a graph may not hold what a changed one does.
    """
    if getattr(model, "predicts", None) != "next" or not model.uses_kv_cache:
        return False

    config = model.config
    if config.sparsity() is not None or config.position in ("alibi", "relative"):
        return False

    return next(model.parameters()).is_cuda and all_unchanged(model)


def tokens_that_fit(model: Model, batch: GenerationBatch) -> int:
    """New tokens before the longest sequence fills the context, or the cache if it has no end."""
    capacity = batch.limit
    if capacity is None:
        capacity = max(model.config.context, NO_END)

    return min(batch.length, capacity - max(batch.prompt_lengths) + 1)


def steps(model: Model, batch: GenerationBatch) -> Steps:
    """The tokens of a batch, for as many steps as fit.

    Rows that have ended stay in the batch; their tokens are discarded.
    """
    count = tokens_that_fit(model, batch)
    device = next(model.parameters()).device
    ids, padding_mask = pad_rows(batch.sequences[:: batch.samples], left=True, device=device)
    key = graph_key(model, batch, ids.shape[1] + count - 1)
    known_key, graph = graphs.pop(model, (None, None))  # a graph serves one batch at a time
    if graph is None or known_key != key:
        del graph  # frees its memory before a new one is allocated
        graph = DecodeGraph(model, batch, key)

    try:
        yield from graph.steps(model, ids, padding_mask, batch, count)
    finally:
        graphs[model] = (key, graph)


class GraphKey(NamedTuple):
    """What must be the same for a graph to be used again."""

    rows: int
    capacity: int
    length: int
    ends: tuple[int, ...]
    sampling_params: str
    weights: tuple[Any, ...]
    """The address and dtype of every parameter."""
    settings: tuple[tuple[object, ...], ...]
    """The class of every module, and what it knows besides its weights."""


def graph_key(model: Model, batch: GenerationBatch, slots: int) -> GraphKey:
    """The key of a batch that needs this many slots in the cache."""
    capacity = up_to(slots, TILE)
    if model.config.position == "learned":
        capacity = min(capacity, model.config.context)

    return GraphKey(
        rows=len(batch.sequences),
        capacity=capacity,
        length=up_to(batch.length, TILE),
        ends=batch.ends,
        sampling_params=repr(batch.sampling_params),
        weights=tuple((weight.data_ptr(), weight.dtype) for weight in model.parameters()),
        settings=tuple(map(snapshot, model.modules())),
    )


class DecodeGraph:
    """The captured steps of a model, with all tensors that they read and write."""

    def __init__(self, model: Model, batch: GenerationBatch, key: GraphKey) -> None:
        config = model.config
        weight = next(model.parameters())
        device = weight.device
        rows = key.rows
        self.params = batch.sampling_params
        self.ends = batch.ends

        # The KV cache.
        kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        shape = (rows, kv_heads, key.capacity, config.width_of_head)
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in range(config.depth):
            self.buffers[layer] = (weight.new_zeros(shape), weight.new_zeros(shape))

        self.empty = partial(empty_cache, self.buffers, key.capacity)
        padding_mask = torch.ones(rows, key.capacity, dtype=torch.bool, device=device)
        positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.cache = StaticCache(self.empty(rows), padding_mask, positions)
        self.angles = decode_step.rotary_table(model, torch.arange(key.capacity, device=device))
        self.tickets = torch.zeros(TICKETS, dtype=torch.int32, device=device)

        # The input and output of a step.
        numbers = torch.zeros(rows, key.length, dtype=batch.uniforms.dtype, device=device)
        self.counters = StepCounters(
            cache=self.cache,
            tokens=torch.zeros(rows, dtype=torch.int64, device=device),
            step=torch.zeros(1, dtype=torch.int64, device=device),
            uniforms=numbers,
            uniform=numbers[:, 0].clone(),
            host=token_memory(key.length + AT_ONCE, rows, device),
        )
        self.counts = batch.token_counts(range(rows), config.vocabulary, device)

        # Kept alive, because the graph knows it only by its address.
        self.forbidden = on_device(self.params.forbidden, device)
        self.capture(model)
        self.prefills = PromptGraphs(key.capacity, self.empty)

    def capture(self, model: Model) -> None:
        """Capture a few steps at a position from which all steps are alike."""
        position = self.params.steady_from + 1

        def run_steps() -> None:
            with decode_step.installed(model, self.angles, self.tickets):
                for _ in range(AT_ONCE):
                    self.sample(self.forward(model), position)

        self.counters.step.zero_()
        self.graph = CudaGraph(run_steps, reset=self.counters.step.zero_)

    def steps(
        self,
        model: Model,
        ids: Int[Tensor, "P T"],
        padding_mask: Bool[Tensor, "P T"] | None,
        batch: GenerationBatch,
        count: int,
    ) -> Steps:
        """Prefill, then `count` steps; the host is up to AHEAD launches behind."""
        logits = self.prefill(model, ids, padding_mask, batch)
        self.sample(logits, 0)
        running = deque([(1, recorded_event())])
        launched = 1
        read = 0

        while read < count:
            while launched < count and len(running) < AHEAD:
                launched = self.launch(model, launched)
                running.append((launched, recorded_event()))

            end, event = running.popleft()
            event.synchronize()
            for step in range(read, min(end, count)):
                yield range(len(batch.sequences)), self.counters.host[step].tolist()
                if len(batch.ended) == len(batch.sequences):
                    return

            read = end

    def launch(self, model: Model, step: int) -> int:
        """Launch the next step, or a few of them by the graph; return the number of the next."""
        if step > self.params.steady_from:
            self.graph.replay()
            return step + AT_ONCE

        self.sample(self.forward(model), step)
        return step + 1

    def prefill(
        self,
        model: Model,
        ids: Int[Tensor, "P T"],
        padding_mask: Bool[Tensor, "P T"] | None,
        batch: GenerationBatch,
    ) -> Float[Tensor, "B V"]:
        """Prefill the prompts, reset the static buffers, and return the first logits."""
        cache = self.cache
        T = ids.shape[1]
        if padding_mask is None:
            logits = self.prefills.logits(model, ids)  # (P, V)
        else:
            logits = next_logits(model, ids, self.empty(len(ids)), padding_mask)

        # Every sample continues from the cache of its prompt.
        prompt = torch.arange(len(batch.sequences), device=ids.device) // batch.samples
        if batch.samples > 1:
            for keys, values in self.buffers.values():
                keys[:, :, :T] = keys[prompt, :, :T]
                values[:, :, :T] = values[prompt, :, :T]

        # The last token of the prompts is at slot T - 1.
        mask = cache.padding_mask
        mask.zero_()
        mask[:, :T] = True if padding_mask is None else padding_mask[prompt]
        cache.positions.copy_(mask.sum(1, keepdim=True) - 1)
        self.counters.reset(T - 1, batch.uniforms)

        rows = range(len(batch.sequences))
        counts = batch.token_counts(rows, model.config.vocabulary, ids.device)
        if self.counts is not None and counts is not None:
            self.counts.in_prompt.copy_(counts.in_prompt)
            self.counts.generated.copy_(counts.generated)

        return logits[prompt]

    def forward(self, model: Model) -> Float[Tensor, "B V"]:
        return next_logits(model, self.counters.tokens.unsqueeze(1), self.cache)

    def sample(self, logits: Float[Tensor, "B V"], position: int) -> None:
        """Choose the tokens of this step."""
        logits = process_logits(logits, self.params, self.counts, position, self.ends)
        tokens = sample_tokens(logits, self.counters.uniform, self.params)
        if self.counts is not None:
            self.counts.add(tokens)

        self.counters.finish(tokens)


def empty_cache(
    buffers: dict[int, tuple[Tensor, Tensor]], capacity: int, rows: int
) -> KeyValueCache:
    """An ordinary cache that writes into the first rows of these buffers."""
    cache = KeyValueCache(capacity, len(buffers))
    for layer, (keys, values) in buffers.items():
        cache.buffers[layer] = (keys[:rows], values[:rows])

    return cache


def recorded_event() -> torch.cuda.Event:
    """An event that has happened when all that was launched so far is done."""
    event = torch.cuda.Event()
    event.record()
    return event
