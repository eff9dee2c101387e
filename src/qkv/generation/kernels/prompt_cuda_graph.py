"""Prefill with a CUDA graph: prompts of one length, padded at their end to few lengths.

The prefill of a short prompt is hundreds of kernels of a few microseconds. The host launches them
one by one more slowly than the GPU runs them; a graph launches them at once. The padding changes
nothing: a causal mask hides it from the prompt, and the decode steps overwrite its slots in the
cache before they are read. The engine of serving has graphs for many prompts in one row
(`serving.engine.runners.prefill_cuda_graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.padding import up_to
from qkv.generation.prefill import next_logits
from qkv.models.model import Model
from qkv.nn.cache import KeyValueCache
from qkv.nn.cuda_graph import CudaGraph

TILE = 32  # prompts are padded to a multiple of it, so that similar lengths share a graph
MOST_TOKENS = 8192  # with more the GPU is slower than the host that launches its kernels

EmptyCache = Callable[[int], KeyValueCache]
"""Returns an empty cache for a number of prompts, at the same addresses every time."""


class PromptGraph:
    """The prefill of prompts that are padded to one shape.

    It is captured at the second call, because a capture takes as long as several passes. The
    first call runs the same kernels one by one, so that equal calls give equal tokens.
    """

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.last = torch.zeros(1, dtype=torch.int64, device=device)
        self.is_known = False
        """It was called before."""
        self.graph: CudaGraph[Tensor] | None = None

    def logits(
        self, model: Model, ids: Int[Tensor, "P T"], empty: EmptyCache, pool: Any
    ) -> Float[Tensor, "P V"]:
        """Logits of the token after each prompt, whose keys and values are then in the cache."""
        P, T = ids.shape
        self.ids[:, :T] = ids
        self.last.fill_(T - 1)

        def run() -> Float[Tensor, "P V"]:
            return next_logits(model, self.ids, empty(P), last=self.last)

        if not self.is_known:
            self.is_known = True
            return run()

        if self.graph is None:
            self.graph = CudaGraph(run, pool=pool)

        return self.graph.replay()


class PromptGraphs:
    """The graphs for one cache, by number and padded length of the prompts.

    Args:
        capacity: Slots of the cache.
        empty: Returns an empty cache.
    """

    def __init__(self, capacity: int, empty: EmptyCache) -> None:
        self.capacity = capacity
        self.empty = empty
        self.captured: dict[tuple[int, int], PromptGraph] = {}
        self.pool: Any = None
        """Memory that the graphs share: one of them runs at a time."""

    def logits(self, model: Model, ids: Int[Tensor, "P T"]) -> Float[Tensor, "P V"]:
        """Prefill prompts without padding, and return the logits of the token after each."""
        P, T = ids.shape
        length = min(up_to(T, TILE), self.capacity)
        if P * length > MOST_TOKENS:
            return next_logits(model, ids, self.empty(P))

        if self.pool is None and ids.is_cuda:
            self.pool = torch.cuda.graph_pool_handle()
        if (P, length) not in self.captured:
            self.captured[P, length] = PromptGraph(P, length, ids.device)

        return self.captured[P, length].logits(model, ids, self.empty, self.pool)
