"""Transformer-XL's segment memory: hidden states of earlier segments instead of keys and values."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.cache.interface import Cache, check_rows


class SegmentMemory(Cache):
    """The hidden states of the last `size` positions of every layer, without their gradient.

    Args:
        size: Positions to remember, 1 or more.
        depth: Number of layers.

    Raises:
        ValueError: If the size is below 1.

    Example:
        >>> import torch
        >>> memory = SegmentMemory(size=4)
        >>> memory.extend(0, torch.zeros(1, 3, 8)).shape  # (B, T, E)
        torch.Size([1, 3, 8])
        >>> memory.extend(0, torch.zeros(1, 3, 8)).shape
        torch.Size([1, 6, 8])
    """

    kind = "SegmentMemory"

    def __init__(self, size: int, depth: int = 1) -> None:
        if size < 1:
            raise ValueError(f"memory: size must be 1 or more, not {size}")

        self.size = size
        self.depth = depth
        self.length = 0  # positions seen, remembered or not
        self.lengths: dict[int, int] = {}
        self.layers: dict[int, Tensor] = {}

    def extend(self, layer: int, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B S E"]:
        """Return the remembered states and the new ones, and remember the last `size` of both.

        Raises:
            ValueError: If the number of rows has changed, or an earlier pass was interrupted.
        """
        both = x
        if layer in self.layers:
            check_rows(self.layers[layer].shape[0], x.shape[0])
            both = torch.cat([self.layers[layer], x], dim=1)

        if layer == 0:
            self.check_complete()
            self.length += x.shape[1]

        self.layers[layer] = both[:, -self.size :].detach()
        self.lengths[layer] = self.lengths.get(layer, 0) + x.shape[1]

        return both

    def within_reach(self, x: Tensor | None) -> Tensor | None:
        """The columns of a (B, S) tensor that the memory still holds, and the new ones."""
        if x is None:
            return None

        return x[:, max(0, self.length - self.size) :]

    def snapshot(self) -> SegmentMemory:
        twin = SegmentMemory(self.size, self.depth)
        twin.length = self.length
        twin.lengths = dict(self.lengths)
        twin.layers = dict(self.layers)

        return twin

    def carried(self) -> dict[str, Tensor]:
        return {str(layer): hidden for layer, hidden in self.layers.items()}

    def continue_from(self, carried: dict[str, Tensor]) -> None:
        for name, hidden in carried.items():
            self.layers[int(name)] = hidden
            self.length = hidden.shape[1]
            self.lengths[int(name)] = self.length

    def check_complete(self) -> None:
        """Raise if an earlier pass did not reach all layers."""
        for layer in range(self.depth):
            if self.lengths.get(layer, 0) != self.length:
                raise ValueError(
                    "state: an earlier pass broke off half-way; begin again with a new state"
                )

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        for layer, hidden in self.layers.items():
            self.layers[layer] = hidden.index_select(0, rows)
