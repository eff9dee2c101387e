"""Decoding on a GPU: one step is recorded and replayed (a CUDA graph), and the host never waits for
a word.

A step of a small model is a hundred kernels of some microseconds. Launched one by one, the host is
slower than the GPU; replayed, they follow each other without a gap. The host reads each word while
the next ones are already being made.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.generation.generation_batch import GenerationBatch, Steps
from qkv.generation.prefill import padded, read
from qkv.generation.sampling_params import on_device, processed, sample_tokens
from qkv.models import GPT
from qkv.nn.cache import KeyValueCache, StaticCache
from qkv.nn.hooks import has_hooks
from qkv.nn.unchanged import all_unchanged, settings

recordings: WeakKeyDictionary[nn.Module, tuple[GraphKey, DecodeGraph]] = WeakKeyDictionary()
"""Of each model the last one: it holds the memory of its cache."""
AHEAD = 3  # steps that the GPU may be ahead of the host
NO_END = (
    4096  # places for a text whose context has no end: all of them are there from the beginning
)
WORTH = 32  # words that are worth recording a step
TILE = 64  # capacities are multiples of it, so that texts of nearly one length share a recording


def supports(model: Any, talk: GenerationBatch) -> bool:
    """A step that always looks alike: no sparse pattern, no positions that count from the last
    place.
    """
    if not isinstance(model, GPT) or not next(model.parameters()).is_cuda or not talk.texts:
        return False
    if has_hooks(model) or not all_unchanged(model):
        # a hook wants to see every token, and a graph may not hold what a changed module does
        return False

    config = model.config
    if config.memory or config.sparsity() is not None or config.position in ("alibi", "relative"):
        return False

    return tokens_that_fit(model, talk) > talk.choice.settled + WORTH


def tokens_that_fit(model: GPT, talk: GenerationBatch) -> int:
    """How many words can be said before the longest text fills the context, or where it has no end,
    a large room.
    """
    room = max(model.config.context, NO_END) if talk.limit is None else talk.limit
    return min(talk.length, room - max(talk.prompts) + 1)


def steps(model: GPT, talk: GenerationBatch) -> Steps:
    """As `decode.steps`, for as many words as fit; rows that have ended go on, and nobody listens
    to them.
    """
    count = tokens_that_fit(model, talk)
    ids, padding_mask = padded(talk.texts[:: talk.samples], next(model.parameters()).device)
    asked = graph_key(model, talk, ids.shape[1] + count - 1)
    found, recording = recordings.pop(model, (None, None))  # it serves one talk at a time
    if recording is None or found != asked:
        del recording
        recording = DecodeGraph(model, talk, asked)

    try:
        yield from recording.steps(model, ids, padding_mask, talk, count)
    finally:
        recordings[model] = (asked, recording)


class GraphKey(NamedTuple):
    """What a recording must be the same in to be used again."""

    rows: int
    capacity: int
    length: int
    ends: tuple[int, ...]
    choice: str
    weights: tuple[Any, ...]
    settings: str
    """Of every module its class and what it knows besides its weights."""


def graph_key(model: GPT, talk: GenerationBatch, places: int) -> GraphKey:
    """A recording knows its weights by where they lie."""
    capacity, length = (-(-count // TILE) * TILE for count in (places, talk.length))
    if model.config.position == "learned":
        capacity = min(capacity, model.config.context)

    weights = tuple((each.data_ptr(), each.dtype) for each in model.parameters())
    known = repr([(type(each), settings(each)) for each in model.modules()])

    return GraphKey(len(talk.texts), capacity, length, talk.ends, repr(talk.choice), weights, known)


class DecodeGraph:
    """One step of a model for so many rows and places, and all that it reads and writes."""

    def __init__(self, model: GPT, talk: GenerationBatch, asked: GraphKey) -> None:
        config, weight, rows = model.config, next(model.parameters()), asked.rows
        kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        shape = (rows, kv_heads, asked.capacity, config.width_of_head)
        self.choice, self.ends, self.settled = talk.choice, talk.ends, talk.choice.settled + 1
        self.buffers = {
            layer: (weight.new_zeros(shape), weight.new_zeros(shape))
            for layer in range(config.depth)
        }
        self.words = torch.zeros(rows, dtype=torch.int64, device=weight.device)
        self.place = torch.zeros(1, dtype=torch.int64, device=weight.device)  # in what is said
        self.uniform = torch.zeros(
            rows, asked.length, dtype=talk.uniform.dtype, device=weight.device
        )
        self.heard = talk.heard(range(rows), config.vocabulary, weight.device)
        padding_mask = torch.ones(rows, asked.capacity, dtype=torch.bool, device=weight.device)
        self.cache = StaticCache(
            self.empty(asked.capacity, rows),
            padding_mask,
            torch.zeros_like(self.words).unsqueeze(1),
        )
        self.never = on_device(
            talk.choice.forbidden, weight.device
        )  # a recording knows it only by where it lies
        self.record(model)

    def record(self, model: GPT) -> None:
        def step() -> None:
            self.choose(self.read(model), self.settled)

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())

        with torch.cuda.stream(aside):  # kernels are compiled before they are recorded
            for _ in range(2):
                step()

        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()

        with torch.cuda.graph(
            self.graph, capture_error_mode="thread_local"
        ):  # others may go on meanwhile
            step()

    def empty(self, capacity: int, rows: int) -> KeyValueCache:
        """An ordinary cache that writes into the first rows of these buffers."""
        cache = KeyValueCache(capacity, len(self.buffers))
        cache.buffers = {
            layer: (keys[:rows], values[:rows]) for layer, (keys, values) in self.buffers.items()
        }
        return cache

    def steps(
        self,
        model: GPT,
        ids: Int[Tensor, "P T"],
        padding_mask: Bool[Tensor, "P T"] | None,
        talk: GenerationBatch,
        count: int,
    ) -> Steps:
        logits = self.begin(model, ids, padding_mask, talk)
        host = torch.empty(count, len(self.words), dtype=torch.int64, pin_memory=True)
        copied: list[torch.cuda.Event] = []

        for place in range(count + AHEAD):
            if place < count:
                if place > talk.choice.settled:
                    self.graph.replay()
                else:
                    self.choose(self.read(model) if place else logits, place)

                host[place].copy_(self.words, non_blocking=True)
                copied.append(torch.cuda.Event())
                copied[-1].record()

            if place >= AHEAD:
                copied[place - AHEAD].synchronize()
                yield range(len(self.words)), host[place - AHEAD].tolist()
                if len(talk.ended) == len(self.words):
                    return

    def begin(
        self,
        model: GPT,
        ids: Int[Tensor, "P T"],
        padding_mask: Bool[Tensor, "P T"] | None,
        talk: GenerationBatch,
    ) -> Float[Tensor, "B V"]:
        """Read the prompts, as ever, and make everything ready for the second word; what may come
        first is given.
        """
        cache, T = self.cache, ids.shape[1]
        logits = read(model, ids, self.empty(cache.capacity, len(ids)), padding_mask)  # (P, V)
        same = torch.arange(len(self.words), device=ids.device) // talk.samples
        if talk.samples > 1:
            for both in self.buffers.values():
                for buffer in both:
                    buffer[:, :, :T] = buffer[same, :, :T]

        cache.padding_mask.zero_()
        cache.padding_mask[:, :T] = True if padding_mask is None else padding_mask[same]
        cache.positions.copy_(cache.padding_mask.sum(1, keepdim=True))
        cache.padding_mask[:, T] = True
        cache.place.fill_(T)
        self.place.zero_()
        self.uniform[:, : talk.length] = talk.uniform
        fresh = talk.heard(range(len(talk.texts)), model.config.vocabulary, ids.device)
        if self.heard is not None and fresh is not None:
            self.heard.read.copy_(fresh.read)
            self.heard.said.copy_(fresh.said)

        return logits[same]

    def read(self, model: GPT) -> Float[Tensor, "B V"]:
        logits = read(model, self.words.clamp(min=0).unsqueeze(1), self.cache)
        self.cache.advance()
        return logits

    def choose(self, logits: Float[Tensor, "B V"], place: int) -> None:
        logits = processed(logits, self.choice, self.heard, place, self.ends)
        uniform = (
            self.uniform.index_select(1, self.place).squeeze(1)
            if self.choice.temperature
            else self.uniform[:, 0]
        )
        words = sample_tokens(logits, uniform, self.choice)
        if self.heard is not None:
            self.heard.add(words)

        self.words.copy_(words)
        self.place += 1
