"""The KV cache of decoding: keys and values of all positions so far, in buffers that grow."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.cache.interface import Cache, check_rows


class KeyValueCache(Cache):
    """Keys and values of the positions seen so far, for every layer.

    Args:
        capacity: Positions to begin with; buffers double when they are full.
        depth: Number of layers.

    Example:
        >>> import torch
        >>> cache = KeyValueCache()
        >>> key = torch.zeros(1, 2, 3, 4)  # (B, K, T, D)
        >>> keys, values = cache.append(0, key, key)
        >>> keys, values = cache.append(0, key, key)
        >>> keys.shape, cache.length
        (torch.Size([1, 2, 6, 4]), 6)
    """

    kind = "KeyValueCache"

    def __init__(self, capacity: int = 64, depth: int = 1) -> None:
        self.depth = depth
        self.capacity = capacity
        self.lengths: dict[int, int] = {}
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:  # type: ignore[override]
        """Positions that every layer has: an interrupted pass does not count."""
        if len(self.lengths) == self.depth and self.depth - 1 in self.lengths:
            return min(self.lengths.values())

        return min(self.lengths.get(layer, 0) for layer in range(self.depth))

    def append(
        self, layer: int, key: Float[Tensor, "B K T D"], value: Float[Tensor, "B K T X"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S X"]]:
        """Add T positions to a layer and return all S it now has.

        Args:
            layer: Number of the layer.
            key: The new keys.
            value: The new values.

        Returns:
            The keys and the values of all positions, views of the buffers.

        Raises:
            ValueError: If the number of rows is not that of earlier calls.
        """
        start = self.make_room(layer, key, value)
        end = start + key.shape[2]
        keys, values = self.buffers[layer]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        self.lengths[layer] = end

        return self.read(layer)

    def make_room(
        self, layer: int, key: Float[Tensor, "B K T D"], value: Float[Tensor, "B K T X"]
    ) -> int:
        """The first of T new positions, for which a layer's buffers are large enough now."""
        start = self.lengths.get(layer, 0)
        if layer < self.depth:
            start = min(start, self.length)

        end = start + key.shape[2]
        if layer in self.buffers:
            check_rows(self.buffers[layer][0].shape[0], key.shape[0])

        if layer not in self.buffers or self.buffers[layer][0].shape[2] < end:
            self.grow(layer, key, value, start, end)

        return start

    def grow(self, layer: int, key: Tensor, value: Tensor, start: int, end: int) -> None:
        """Replace a layer's buffers by larger ones with the same first positions."""
        size = max(self.capacity, 2 * start, end)
        keys = key.new_empty(*key.shape[:2], size, key.shape[3])
        values = value.new_empty(*value.shape[:2], size, value.shape[3])
        if layer in self.buffers:
            old_keys, old_values = self.buffers[layer]
            keys[:, :, :start] = old_keys[:, :, :start]
            values[:, :, :start] = old_values[:, :, :start]

        self.buffers[layer] = (keys, values)

    def read(self, layer: int) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S X"]]:
        """The keys and values of a layer."""
        keys, values = self.buffers[layer]
        return keys[:, :, : self.lengths[layer]], values[:, :, : self.lengths[layer]]

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]; there may be more or fewer rows than before."""
        for layer, (keys, values) in self.buffers.items():
            length = self.lengths.get(layer, keys.shape[2])
            self.buffers[layer] = (reordered(keys, rows, length), reordered(values, rows, length))


def reordered(
    buffer: Float[Tensor, "R K S D"], rows: Int[Tensor, "B"], length: int
) -> Float[Tensor, "B K S D"]:
    """The given rows of a buffer of which the first `length` positions are in use."""
    if not buffer.is_cpu or len(rows) != len(buffer):
        return buffer.index_select(0, rows)

    # On a CPU allocating memory costs more than copying: copy only the rows that move, in place.
    moved = (rows != torch.arange(len(rows))).nonzero().squeeze(1)  # (M,)
    used = buffer[:, :, :length]
    used.index_copy_(0, moved, used.index_select(0, rows[moved]))

    return buffer
