"""Prefill with a CUDA graph: prompts of one length, padded at their end to few lengths.

The prefill of a short prompt is hundreds of kernels of a few microseconds. The host launches them
one by one more slowly than the GPU runs them; a graph launches them at once. The padding changes
nothing: a causal mask hides it from the prompt, and the decode steps overwrite its slots in the
cache before they are read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.padding import up_to
from qkv.generation.prefill import next_logits
from qkv.models.model import Model
from qkv.nn.cache import KeyValueCache
from qkv.nn.cuda_graph import CudaGraph

TILE = 32  # prompts are padded to a multiple of it, so that similar lengths share a graph
MOST = 8192  # with more tokens the GPU is slower than the host that launches its kernels


class PromptGraph:
    """The captured prefill of `rows` prompts of at most `length` tokens.

    Args:
        model: A GPT.
        rows: Number of prompts.
        length: Tokens of a prompt with its padding.
        cache: Returns an empty cache, at the same addresses every time.
    """

    def __init__(
        self, model: Model, rows: int, length: int, cache: Callable[[], KeyValueCache]
    ) -> None:
        device = next(model.parameters()).device
        self.ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.last = torch.zeros(1, dtype=torch.int64, device=device)

        def run() -> Float[Tensor, "P V"]:
            return next_logits(model, self.ids, cache(), last=self.last)

        self.graph = CudaGraph(run)

    def replay(self, ids: Int[Tensor, "P T"]) -> Float[Tensor, "P V"]:
        """Logits of the token after each prompt, whose keys and values are then in the cache."""
        T = ids.shape[1]
        self.ids[:, :T] = ids
        self.last.fill_(T - 1)

        return self.graph.replay()


class PromptGraphs:
    """The graphs for one cache, by number and padded length of the prompts.

    A graph is captured when such prompts come for the second time: a capture takes as long as
    several passes.

    Args:
        capacity: Slots of the cache.
        empty: Returns an empty cache for a number of prompts.
    """

    def __init__(self, capacity: int, empty: Callable[[int], KeyValueCache]) -> None:
        self.capacity = capacity
        self.empty = empty
        self.captured: dict[tuple[int, int], PromptGraph | None] = {}
        """None for prompts that came once."""

    def logits(self, model: Model, ids: Int[Tensor, "P T"]) -> Float[Tensor, "P V"]:
        """Prefill prompts without padding, and return the logits of the token after each."""
        P, T = ids.shape
        length = min(up_to(T, TILE), self.capacity)
        if P * length > MOST:
            return next_logits(model, ids, self.empty(P))

        if (P, length) not in self.captured:
            self.captured[P, length] = None
            return next_logits(model, ids, self.empty(P))

        graph = self.captured[P, length]
        if graph is None:
            graph = PromptGraph(model, P, length, lambda: self.empty(P))
            self.captured[P, length] = graph

        return graph.replay(ids)
