"""The paged KV cache of serving: keys and values of all sequences in one store of fixed size.

A plain cache has a row for each sequence, as long as the longest may become. Here a sequence has
slots wherever some are free, and a block table says in which slot each of its positions is. So the
memory is allocated once, and nothing moves when a sequence ends and another begins.

A `PackedBatch` is the state of one forward pass over the new tokens of several sequences, laid one
after the other in a single row. Norms, projections and the feed-forward layer treat each token by
itself, so only attention needs to know which sequence a token belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.attention.kernels.decode import attend_paged, supports_pages
from qkv.nn.attention.mask import Mask, Padding
from qkv.nn.cache import page_writes
from qkv.nn.cache.interface import Attend, Cache, KeysAndValues
from qkv.nn.cache.memory_on_demand import check_memory, zeros_on_demand


class PagedCache:
    """Slots for one key and one value each in every layer, and the sequences' block tables.

    Args:
        slots: Number of slots.
        sequences: Sequences at a time.
        longest: Positions of the longest sequence.
        depth: Number of layers.
        kv_heads: Key and value heads.
        head_width: Width of a head.
        like: A tensor with the dtype and device of the keys.
    """

    def __init__(
        self,
        slots: int,
        sequences: int,
        longest: int,
        *,
        depth: int,
        kv_heads: int,
        head_width: int,
        like: Tensor,
    ) -> None:
        shape = (slots, kv_heads, head_width)
        if like.device.type == "cpu":
            check_memory(slots * self.bytes_per_slot(depth, kv_heads, head_width, like))

        # Zeros, because masked values are multiplied by 0, and uninitialised memory may hold NaN.
        self.keys = [zeros_on_demand(shape, like) for _ in range(depth)]
        self.values = [zeros_on_demand(shape, like) for _ in range(depth)]
        self.block_table = torch.zeros(sequences, longest, dtype=torch.int32, device=like.device)
        """The block tables: the slot of each position of each sequence."""
        self.source_block_table = torch.zeros_like(self.block_table)
        """The same for the sources of an encoder-decoder."""

    @staticmethod
    def bytes_per_slot(depth: int, kv_heads: int, head_width: int, like: Tensor) -> int:
        """Bytes of a slot in all layers."""
        return 2 * depth * kv_heads * head_width * like.element_size()

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in (*self.keys, *self.values))

    def write(
        self,
        layer: int,
        slots: Int[Tensor, "N"],
        key: Float[Tensor, "1 K N D"],
        value: Float[Tensor, "1 K N D"],
    ) -> None:
        """Store keys and values of a layer in the given slots."""
        if page_writes.supports(key, value):
            page_writes.store(self.keys[layer], self.values[layer], slots, key, value)
            return

        self.keys[layer].index_copy_(0, slots, key[0].transpose(0, 1))  # (N, K, D)
        self.values[layer].index_copy_(0, slots, value[0].transpose(0, 1))

    def read(
        self, layer: int, slots: Int[Tensor, "R S"]
    ) -> tuple[Float[Tensor, "R K S D"], Float[Tensor, "R K S D"]]:
        """The keys and values of a layer in the given slots."""
        key = self.keys[layer].index_select(0, slots.flatten()).unflatten(0, slots.shape)
        value = self.values[layer].index_select(0, slots.flatten()).unflatten(0, slots.shape)
        return key.transpose(1, 2), value.transpose(1, 2)

    def copy(self, old: Int[Tensor, "N"], new: Int[Tensor, "N"]) -> None:
        """Copy slots to others, in all layers: for a sequence that branches."""
        for store in (*self.keys, *self.values):
            store.index_copy_(0, new, store.index_select(0, old))


class SequenceGroup(NamedTuple):
    """Sequences with the same number of new tokens, side by side in the row from `begin` on."""

    begin: int
    sequences: int
    tokens: int
    """New tokens of each sequence."""
    table_rows: Int[Tensor, "R"] | None
    """Their rows in the block table; None for sequences without a past."""
    lengths: Int[Tensor, "R"] | None = None
    """Their positions, including those of the new tokens."""
    longest: int = 0
    even: bool = True
    """All have the same length."""

    @property
    def end(self) -> int:
        return self.begin + self.sequences * self.tokens


class PackedBatch(Cache):
    """New tokens of several sequences in one row, as the state of a forward pass.

    Args:
        pages: The cache.
        groups: The sequences, in the order of their tokens.
        slots: Where the new keys and values go; None in cross-attention, whose keys and values
            were written before.
    """

    kind = "KeyValueCache"
    packed = True

    def __init__(
        self, pages: PagedCache, groups: list[SequenceGroup], slots: Int[Tensor, "N"] | None
    ) -> None:
        self.pages = pages
        self.groups = groups
        self.slots = slots
        self.is_source = slots is None
        self.indices: dict[int, tuple[Tensor, Mask | None]] = {}

    @property
    def block_table(self) -> Int[Tensor, "N longest"]:
        return self.pages.source_block_table if self.slots is None else self.pages.block_table

    @cached_property
    def bounds(self) -> Int[Tensor, "R"]:
        """The first token of each sequence in the row, and the end of the last one."""
        firsts = [0]
        for group in self.groups:
            firsts += range(group.begin + group.tokens, group.end + 1, group.tokens)

        return torch.tensor(firsts, dtype=torch.int32, device=self.block_table.device)

    def source_keys(self, layer: int, compute: KeysAndValues) -> tuple[Tensor, Tensor]:
        """The store of all sources' keys and values, which are not computed again."""
        return self.pages.keys[layer], self.pages.values[layer]

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "1 H N D"],
        key: Tensor,
        value: Tensor,
        attend: Attend,
        *,
        plain: Callable[[], bool],
    ) -> tuple[Float[Tensor, "1 H N D"], None]:
        """Let every token attend to its own sequence, up to itself, or to its source."""
        if self.slots is not None:
            self.pages.write(layer, self.slots, key, value)

        use_kernel = plain()
        outputs = []
        for number, group in enumerate(self.groups):
            queries = by_sequence(query, group)  # (R, H, T, D)
            if group.table_rows is None:
                keys = by_sequence(key, group)
                heads, _ = attend(queries, keys, by_sequence(value, group), None)
            elif use_kernel and group.lengths is not None and supports_pages(queries):
                heads = attend_paged(
                    queries,
                    self.pages.keys[layer],
                    self.pages.values[layer],
                    self.block_table,
                    group.table_rows,
                    group.lengths,
                    group.longest,
                )
            else:
                slots, padding = self.index(number, group)
                heads, _ = attend(queries, *self.pages.read(layer, slots), padding)

            outputs.append(heads.transpose(0, 1).flatten(1, 2))  # (H, R T, D)

        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return joined.unsqueeze(0), None

    def index(self, number: int, group: SequenceGroup) -> tuple[Int[Tensor, "R S"], Mask | None]:
        """The slots of a group's sequences and their padding mask, the same for all layers.

        Padding is on the left: the distance of a query to its keys is the same without it.
        """
        if number not in self.indices:
            assert group.table_rows is not None
            assert group.lengths is not None
            S = group.longest
            first = S - group.lengths.unsqueeze(1)  # (R, 1)
            position = torch.arange(S, device=self.block_table.device) - first  # (R, S)
            table = self.block_table.index_select(0, group.table_rows)
            slots = table.gather(1, position.clamp(min=0))
            self.indices[number] = (slots, None if group.even else Padding(position >= 0))

        return self.indices[number]


def by_sequence(x: Float[Tensor, "1 H N D"], group: SequenceGroup) -> Float[Tensor, "R H T D"]:
    """The part of a row that belongs to a group, one sequence per row."""
    part = x[0, :, group.begin : group.end]  # (H, R T, D)
    return part.unflatten(1, (group.sequences, group.tokens)).transpose(0, 1)
