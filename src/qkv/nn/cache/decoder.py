"""The state of an encoder-decoder Transformer: its source, and the target so far."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention.mask import Padding
from qkv.nn.cache.interface import Attend, Cache, KeysAndValues, reorder_optional
from qkv.nn.cache.kv_cache import KeyValueCache


class EncodedSource(Cache):
    """The encoder's output, whose keys and values every layer computes anew, as in training."""

    is_source = True
    encoded: Float[Tensor, "B S E"]

    def __init__(
        self, encoded: Float[Tensor, "B S E"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> None:
        self.encoded = encoded
        self.padding_mask = padding_mask
        self.visible: Padding | None = None
        """The mask of the padding, which all layers share."""
        self.shared = 1  # rows per source

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self.encoded.shape[0] * self.shared

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "R H T D"],
        key: Float[Tensor, "B K S D"],
        value: Float[Tensor, "B K S X"],
        attend: Attend,
        *,
        plain: Callable[[], bool],
    ) -> tuple[Float[Tensor, "R H T X"], Tensor | None]:
        """Attend to the source. Rows that share one become one row, so its keys are not copied."""
        mask = self.source_mask()
        if self.shared == 1:
            return attend(query, key, value, mask)

        T = query.shape[2]
        rows = query.unflatten(0, (-1, self.shared)).transpose(1, 2)  # (B, H, shared, T, D)
        heads, weights = attend(rows.flatten(2, 3), key, value, mask)
        heads = by_row(heads, T)
        return heads, None if weights is None else by_row(weights, T)

    def source_mask(self) -> Padding | None:
        """The tokens of the source as a mask, one object as long as the rows stay the same."""
        if self.padding_mask is None:
            return None
        if self.visible is None or self.visible.padding_mask is not self.padding_mask:
            self.visible = Padding(self.padding_mask)

        return self.visible


class SourceCache(EncodedSource):
    """The keys and values of a source in every decoder layer, computed once.

    Rows that continue one source, such as beams and samples, share it if they lie side by side and
    every source has the same number of them.
    """

    def __init__(
        self, encoded: Float[Tensor, "B S E"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> None:
        super().__init__(encoded, padding_mask)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def source_keys(self, layer: int, compute: KeysAndValues) -> tuple[Tensor, Tensor]:
        if layer not in self.layers:
            key, value = compute()
            self.layers[layer] = (key.contiguous(), value.contiguous())

        return self.layers[layer]

    def reorder(self, rows: Int[Tensor, "R"]) -> None:
        """Let row i go on with the source of the old row rows[i]."""
        sources = rows // self.shared  # (R,): the source of each new row
        distinct, counts = sources.unique_consecutive(return_counts=True)
        self.shared = 1
        if len(counts) and bool((counts == counts[0]).all()):
            self.shared = int(counts[0])

        if self.shared == 1:
            distinct = sources

        if torch.equal(distinct, torch.arange(self.encoded.shape[0], device=rows.device)):
            return

        for layer, (key, value) in self.layers.items():
            self.layers[layer] = (key.index_select(0, distinct), value.index_select(0, distinct))

        self.encoded = self.encoded.index_select(0, distinct)
        self.padding_mask = reorder_optional(self.padding_mask, distinct)


class DecoderState(Cache):
    """An encoder-decoder's state: the source as its layers see it, and the target so far."""

    kind = "DecoderState"

    def __init__(self, source: Cache, target: Cache) -> None:
        self.caches = (source, target)

    @classmethod
    def cached(
        cls, encoded: Float[Tensor, "B S E"], padding_mask: Tensor | None = None, depth: int = 1
    ) -> DecoderState:
        """The state before the first target token of decoding."""
        return cls(SourceCache(encoded, padding_mask), KeyValueCache(depth=depth))

    @property
    def source(self) -> Cache:
        return self.caches[0]

    @property
    def target(self) -> Cache:
        return self.caches[1]

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.target.length

    @property
    def packed(self) -> bool:  # type: ignore[override]
        return self.target.packed

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        self.source.reorder(rows)
        self.target.reorder(rows)


def by_row(x: Float[Tensor, "B H N D"], T: int) -> Float[Tensor, "R H T D"]:
    """The rows that share a source apart again: (B, H, shared T, D) to (B shared, H, T, D)."""
    return x.unflatten(2, (-1, T)).transpose(1, 2).flatten(0, 1)
