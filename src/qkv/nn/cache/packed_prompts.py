"""Prompts in one row over a paged cache, described by tensors of fixed shapes alone.

A `PackedBatch` knows its sequences on the host, so every step launches other kernels. Here a CUDA
graph reads from memory which tokens belong together: each tile is a few tokens of one sequence,
and the block table has the keys of all its positions, those of the past and the new ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.cache.interface import Attend, Cache
from qkv.nn.cache.paged import PagedCache


class PackedPrompts(Cache):
    """New tokens of several sequences in one row, as the state of a forward pass.

    Args:
        pages: The cache; its block table has the slots of all positions up to the new tokens'.
        slots: Where the new keys and values go.
        table_rows: The row of the block table of each token's sequence.
        tiles: Columns of the first token, the number of tokens and the keys that the last of them
            attends to; each token before it attends to one key less. Tokens of a tile without keys
            are padding, and their heads are 0. Every token is in one tile; a tile may be empty.
    """

    kind = "KeyValueCache"
    packed = True

    def __init__(
        self,
        pages: PagedCache,
        slots: Int[Tensor, "N"],
        table_rows: Int[Tensor, "N"],
        tiles: Int[Tensor, "3 M"],
    ) -> None:
        self.pages = pages
        self.slots = slots
        self.table_rows = table_rows
        self.tiles = tiles

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
        """Tile by tile, which waits for the device; `qkv.nn.decode.prompt_attention` does not."""
        self.pages.write(layer, self.slots, key, value)
        heads = torch.zeros_like(query)
        for first, count, keys in self.tiles.t().tolist():
            if not count or not keys:
                continue

            table = self.pages.block_table[self.table_rows[first], :keys]
            queries = query[:, :, first : first + count]
            output, _ = attend(queries, *self.pages.read(layer, table.unsqueeze(0)), None)
            heads[:, :, first : first + count] = output

        return heads, None
