"""A KV cache of fixed size, whose steps a CUDA graph can capture and replay."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention.kernels.decode import store_key_value
from qkv.nn.cache.kv_cache import KeyValueCache


class StaticCache(KeyValueCache):
    """A KV cache of N slots, all of which are always attended to under a padding mask.

    `padding_mask` is True for slots with a token, the next token of every row goes to `slot`, and
    its position in the sequence is `positions`; all three are tensors on the device.
    """

    padding_mask: Bool[Tensor, "B N"]
    positions: Int[Tensor, "B 1"]

    def __init__(
        self, read: KeyValueCache, padding_mask: Bool[Tensor, "B N"], positions: Int[Tensor, "B 1"]
    ) -> None:
        """Continue another cache in its own buffers.

        Args:
            read: The cache after prefill, with a capacity of N.
            padding_mask: True for the tokens read, and for the slot of the next token.
            positions: The next token's position in each row.
        """
        super().__init__(padding_mask.shape[1], read.depth)
        self.buffers = read.buffers
        self.padding_mask = padding_mask
        self.positions = positions
        self.slot = torch.tensor([read.length], device=padding_mask.device)

    @property
    def length(self) -> int:  # type: ignore[override]
        """All slots but the new token's."""
        return self.capacity - 1

    def append(
        self, layer: int, key: Float[Tensor, "B K 1 D"], value: Float[Tensor, "B K 1 X"]
    ) -> tuple[Float[Tensor, "B K N D"], Float[Tensor, "B K N X"]]:
        """Write one position to the current slot, and return all slots."""
        keys, values = self.buffers[layer]
        if not store_key_value(keys, values, self.slot, key, value):
            keys.index_copy_(2, self.slot, key)
            values.index_copy_(2, self.slot, value)

        return keys, values

    def advance(self) -> None:
        """Go on to the next slot; a full cache stays at its last one."""
        last = self.capacity - 1
        self.slot.copy_((self.slot + 1).clamp(max=last))
        self.positions.copy_((self.positions + 1).clamp(max=last))
        self.padding_mask.index_fill_(1, self.slot, True)
