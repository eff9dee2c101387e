"""A memory for many texts that come and go: keys and values of all of them in one store of fixed
size.

A cache gives each text a row, and a row has room for the longest text. Here a text has places
wherever some are free, and a table says where each of its positions lies, as the pages of a book
may lie anywhere if there is an index. So the bytes are chosen once, and nothing is moved when a
text ends and another begins.

A `Turn` is the state of one forward pass over new words of several texts, laid one after the other
in a single row: what every word does for itself (norms, feed-forward, projections) does not care
whose word it is. Only attention does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention.kernels.decode import look_at_pages, supports_pages
from qkv.nn.attention.mask import Mask, Padding

Attend = Callable[[Tensor, Tensor, Tensor, Mask | None], Tensor]
"""From queries, keys and values of texts of one length (R, H, T, D), and who may not be looked at,
to what is found.
"""


class PagedCache:
    """The store: `places` for a key and a value each, in every layer, and for each of the running
    texts an index.
    """

    def __init__(
        self,
        places: int,
        texts: int,
        longest: int,
        *,
        depth: int,
        kv_heads: int,
        head_width: int,
        like: Tensor,
    ) -> None:
        shape = (places, kv_heads, head_width)
        # Zeros: what is masked is multiplied by 0, and whatever else lay there could be no number.
        self.keys = [like.new_zeros(shape) for _ in range(depth)]
        self.values = [like.new_zeros(shape) for _ in range(depth)]
        self.at = torch.zeros(texts, longest, dtype=torch.int32, device=like.device)
        """Of each text, the place of each of its positions."""
        self.source_at = torch.zeros_like(self.at)
        """The same for what a translator's decoder looks at beside its own words."""

    @staticmethod
    def bytes_of_place(depth: int, kv_heads: int, head_width: int, like: Tensor) -> int:
        return 2 * depth * kv_heads * head_width * like.element_size()

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self.keys, *self.values))

    def write(
        self,
        layer: int,
        places: Int[Tensor, "N"],
        key: Float[Tensor, "1 K N D"],
        value: Float[Tensor, "1 K N D"],
    ) -> None:
        self.keys[layer].index_copy_(0, places, key[0].transpose(0, 1))  # (N, K, D)
        self.values[layer].index_copy_(0, places, value[0].transpose(0, 1))

    def read(
        self, layer: int, at: Int[Tensor, "R S"]
    ) -> tuple[Float[Tensor, "R K S D"], Float[Tensor, "R K S D"]]:
        R, S = at.shape
        found = (
            store[layer].index_select(0, at.flatten()).unflatten(0, (R, S))
            for store in (self.keys, self.values)
        )
        key, value = (each.transpose(1, 2) for each in found)
        return key, value

    def copy(self, old: Int[Tensor, "N"], new: Int[Tensor, "N"]) -> None:
        """What lies at some places, also at others: for a text that goes on in two ways."""
        for store in (*self.keys, *self.values):
            store.index_copy_(0, new, store.index_select(0, old))


class SequenceGroup(NamedTuple):
    """Texts with as many new words each, side by side in the row: words begin to begin + texts *
    words.
    """

    begin: int
    texts: int
    words: int
    slots: Int[Tensor, "R"] | None
    """Which texts they are; None when they have no past: they look at their new words alone."""
    lengths: Int[Tensor, "R"] | None = None
    """Their positions, those of the new words among them."""
    longest: int = 0
    even: bool = True
    """All are as long."""

    @property
    def end(self) -> int:
        return self.begin + self.texts * self.words


class PackedBatch:
    """New words of several texts in one row, as the state of a forward pass."""

    length = 0

    def __init__(
        self, pages: PagedCache, groups: list[SequenceGroup], places: Int[Tensor, "N"] | None
    ) -> None:
        """`places` is where the new words' keys and values go; None where a source is looked at,
        which has its own.
        """
        self.pages, self.groups, self.places = pages, groups, places
        self.indices: dict[int, tuple[Tensor, Mask | None]] = {}

    @property
    def at(self) -> Int[Tensor, "texts longest"]:
        return self.pages.source_at if self.places is None else self.pages.at

    def look(
        self,
        layer: int,
        query: Float[Tensor, "1 H N D"],
        key: Float[Tensor, "1 K N D"] | None,
        value: Float[Tensor, "1 K N D"] | None,
        attend: Attend,
        *,
        plain: bool,
    ) -> Float[Tensor, "1 H N D"]:
        """Every word at its own text, up to itself. `plain`: nothing but that is asked of
        attention.
        """
        if self.places is not None:
            assert key is not None
            assert value is not None
            self.pages.write(layer, self.places, key, value)

        found = []

        for number, group in enumerate(self.groups):
            mine = by_text(query, group)  # (R, H, T, D)
            if group.slots is None:
                heads = attend(mine, by_text(key, group), by_text(value, group), None)
            elif plain and group.lengths is not None and supports_pages(mine):
                stores = self.pages.keys[layer], self.pages.values[layer]
                heads = look_at_pages(
                    mine, *stores, self.at, group.slots, group.lengths, group.longest
                )
            else:
                at, padding_mask = self.index(number, group)
                heads = attend(mine, *self.pages.read(layer, at), padding_mask)

            found.append(heads.transpose(0, 1).flatten(1, 2))  # (H, R T, D)

        return (found[0] if len(found) == 1 else torch.cat(found, dim=1)).unsqueeze(0)

    def index(self, number: int, group: SequenceGroup) -> tuple[Int[Tensor, "R S"], Mask | None]:
        """Where a group's texts lie, each to the right: so a query's distance to its keys is what
        it is alone.
        """
        if number not in self.indices:
            assert group.slots is not None
            assert group.lengths is not None
            S = group.longest
            position = torch.arange(S, device=self.at.device) - (
                S - group.lengths.unsqueeze(1)
            )  # (R, S)
            at = self.at.index_select(0, group.slots).gather(1, position.clamp(min=0))
            padding_mask: Bool[Tensor, "R S"] | None = None if group.even else position >= 0
            self.indices[number] = (at, None if padding_mask is None else Padding(padding_mask))

        return self.indices[number]


class PackedDecoderBatch:
    """The same for a decoder with a source, which was written into the pages before."""

    length = 0

    def __init__(self, target: PackedBatch, source: PackedBatch) -> None:
        self.target, self.source = target, source


def by_text(x: Float[Tensor, "1 H N D"] | None, group: SequenceGroup) -> Float[Tensor, "R H T D"]:
    assert x is not None
    return x[0, :, group.begin : group.end].unflatten(1, (group.texts, group.words)).transpose(0, 1)
