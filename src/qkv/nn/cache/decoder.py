"""The state of an encoder-decoder Transformer: the cached source, and the target's KV cache."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.cache.interface import reorder_optional
from qkv.nn.cache.kv_cache import KeyValueCache


class SourceCache(KeyValueCache):
    """The keys and values of a source in every decoder layer, computed once.

    Rows that continue one source, such as beams and samples, share it if they lie side by side and
    every source has the same number of them.
    """

    def __init__(
        self,
        source: Float[Tensor, "B S E"],
        padding_mask: Bool[Tensor, "B S"] | None = None,
        depth: int = 1,
    ) -> None:
        super().__init__(source.shape[1], depth)
        self.source = source
        self.padding_mask = padding_mask
        self.shared = 1  # rows per source

    @property
    def rows(self) -> int:
        return self.source.shape[0] * self.shared

    def reorder(self, rows: Int[Tensor, "R"]) -> None:
        """Let row i go on with the source of the old row rows[i]."""
        sources = rows // self.shared  # (R,): the source of each new row
        distinct, counts = sources.unique_consecutive(return_counts=True)
        self.shared = 1
        if len(counts) and bool((counts == counts[0]).all()):
            self.shared = int(counts[0])

        if self.shared == 1:
            distinct = sources

        if torch.equal(distinct, torch.arange(self.source.shape[0], device=rows.device)):
            return

        super().reorder(distinct)
        self.source = self.source.index_select(0, distinct)
        self.padding_mask = reorder_optional(self.padding_mask, distinct)


class DecoderState:
    """An encoder-decoder's state: the source as its layers see it, and the target so far."""

    def __init__(
        self,
        source: Float[Tensor, "B S E"],
        padding_mask: Bool[Tensor, "B S"] | None = None,
        depth: int = 1,
    ) -> None:
        self.source = SourceCache(source, padding_mask, depth)
        self.target = KeyValueCache(depth=depth)

    @property
    def length(self) -> int:
        return self.target.length

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        self.source.reorder(rows)
        self.target.reorder(rows)
