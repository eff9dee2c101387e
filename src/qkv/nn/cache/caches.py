"""What decoding remembers. State is an argument of a forward pass, never an attribute of a layer.

Every state has `length` (positions seen so far) and `reorder` (beam search: row i goes on as the
old row rows[i]), so one decoding loop serves RNNs and Transformers alike; layers `append` to it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention.kernels.decode import remember


class DecodingState(Protocol):
    @property
    def length(self) -> int: ...

    def reorder(self, rows: Int[Tensor, "B"]) -> None: ...


def check_rows(remembered: int, given: int) -> None:
    if remembered != given:
        raise ValueError(f"state: it remembers {remembered} rows, and the input has {given}")


class KeyValueCache:
    """Keys and values of the positions seen, for every layer; the buffers double when they are
    full.
    """

    def __init__(self, capacity: int = 64, depth: int = 1) -> None:
        self.depth, self.capacity = depth, capacity
        self.lengths: dict[int, int] = {}
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """Positions that every layer has: a pass that broke off half-way does not count."""
        return min(self.lengths.get(layer, 0) for layer in range(self.depth))

    def append(
        self, layer: int, key: Float[Tensor, "B K T D"], value: Float[Tensor, "B K T X"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S X"]]:
        """Add T positions to a layer and return all S it now has."""
        start = (
            min(self.lengths.get(layer, 0), self.length)
            if layer < self.depth
            else self.lengths.get(layer, 0)
        )
        end = start + key.shape[2]
        if layer in self.buffers:
            check_rows(self.buffers[layer][0].shape[0], key.shape[0])

        if layer not in self.buffers or self.buffers[layer][0].shape[2] < end:
            self.grow(layer, key, value, start, end)

        keys, values = self.buffers[layer]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        self.lengths[layer] = end

        return self.read(layer)

    def grow(self, layer: int, key: Tensor, value: Tensor, start: int, end: int) -> None:
        size = max(self.capacity, 2 * start, end)
        old = self.buffers.get(layer)
        new = tuple(x.new_empty(*x.shape[:2], size, x.shape[3]) for x in (key, value))
        if old is not None:
            for fresh, used in zip(new, old, strict=True):
                fresh[:, :, :start] = used[:, :, :start]

        self.buffers[layer] = (new[0], new[1])

    def __contains__(self, layer: int) -> bool:
        return layer in self.buffers

    def read(self, layer: int) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S X"]]:
        keys, values = self.buffers[layer]
        return keys[:, :, : self.lengths[layer]], values[:, :, : self.lengths[layer]]

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        for layer, both in self.buffers.items():
            length = self.lengths.get(layer, both[0].shape[2])
            self.buffers[layer] = (
                reordered(both[0], rows, length),
                reordered(both[1], rows, length),
            )


def reordered(
    buffer: Float[Tensor, "R K S D"], rows: Int[Tensor, "B"], length: int
) -> Float[Tensor, "B K S D"]:
    if not buffer.is_cpu or len(rows) != len(buffer):
        return buffer.index_select(0, rows)

    # On a CPU new memory costs more than the copy into it: only rows that move are copied, and in
    # their place.
    moved = (rows != torch.arange(len(rows))).nonzero().squeeze(1)  # (M,)
    seen = buffer[:, :, :length]
    seen.index_copy_(0, moved, seen.index_select(0, rows[moved]))

    return buffer


class StaticCache(KeyValueCache):
    """A cache whose every step looks alike, so that a GPU can record one step and replay it.

    All its places are always there. `padding_mask` says which of them have a word, and the next
    word of every row goes to `place`, at `positions` in its text; all three are numbers on the
    device.
    """

    def __init__(
        self, read: KeyValueCache, padding_mask: Bool[Tensor, "B N"], positions: Int[Tensor, "B 1"]
    ) -> None:
        """After what another cache has read, in its own buffers; `padding_mask` is True for the
        next word, too.
        """
        super().__init__(padding_mask.shape[1], read.depth)
        self.buffers, self.padding_mask, self.positions = read.buffers, padding_mask, positions
        self.place = torch.tensor([read.length], device=padding_mask.device)

    @property
    def length(self) -> int:
        """Every place but the new word's."""
        return self.capacity - 1

    def append(
        self, layer: int, key: Float[Tensor, "B K 1 D"], value: Float[Tensor, "B K 1 X"]
    ) -> tuple[Float[Tensor, "B K N D"], Float[Tensor, "B K N X"]]:
        keys, values = self.buffers[layer]
        if not remember(keys, values, self.place, key, value):
            keys.index_copy_(2, self.place, key)
            values.index_copy_(2, self.place, value)

        return keys, values

    def advance(self) -> None:
        """On to the next place."""
        self.place += 1
        self.positions += 1
        self.padding_mask.index_fill_(1, self.place.clamp(max=self.capacity - 1), True)


class SourceCache(KeyValueCache):
    """A decoder's view of its source: every layer's keys and values of it, computed once.

    Rows that go on from one source, as beams and samples do, share it when they lie side by side,
    as many for each.
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
        self.shared = 1  # rows for each source

    @property
    def rows(self) -> int:
        return self.source.shape[0] * self.shared

    def reorder(self, rows: Int[Tensor, "R"]) -> None:
        sources = rows // self.shared  # (R,): the source of each new row
        kept, times = sources.unique_consecutive(return_counts=True)
        self.shared = int(times[0]) if len(times) and bool((times == times[0]).all()) else 1
        kept = kept if self.shared > 1 else sources
        if not torch.equal(kept, torch.arange(self.source.shape[0], device=rows.device)):
            super().reorder(kept)
            self.source = self.source.index_select(0, kept)
            self.padding_mask = (
                None if self.padding_mask is None else self.padding_mask.index_select(0, kept)
            )


class DecoderState:
    """An encoder-decoder Transformer's state: the source as its layers see it, and the target so
    far.
    """

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
        self.source.reorder(rows)
        self.target.reorder(rows)


class SegmentMemory:
    """Transformer-XL: the hidden states of the last `size` positions, for every layer, without
    their gradient.
    """

    def __init__(self, size: int, depth: int = 1) -> None:
        if size < 1:
            raise ValueError(f"memory: size must be 1 or more, not {size}")

        self.size, self.depth = size, depth
        self.length = 0  # positions seen, remembered or not
        self.lengths: dict[int, int] = {}
        self.layers: dict[int, Tensor] = {}

    def append(self, layer: int, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B S E"]:
        """Return the remembered states followed by the new ones, and remember the last `size` of
        both.
        """
        if layer in self.layers:
            check_rows(self.layers[layer].shape[0], hidden.shape[0])

        if layer == 0:
            if any(self.lengths.get(each, 0) != self.length for each in range(self.depth)):
                raise ValueError(
                    "state: an earlier pass broke off half-way; begin again with a new state"
                )

            self.length += hidden.shape[1]

        both = torch.cat([self.layers[layer], hidden], dim=1) if layer in self.layers else hidden
        self.layers[layer] = both[:, -self.size :].detach()
        self.lengths[layer] = self.lengths.get(layer, 0) + hidden.shape[1]

        return both

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        self.layers = {layer: hidden.index_select(0, rows) for layer, hidden in self.layers.items()}


class RecurrentState:
    """An RNN decoder's state: its hidden vectors (an LSTM's cells too) and, with attention, the
    encoder's outputs.
    """

    def __init__(
        self,
        hidden: tuple[Float[Tensor, "L B E"], ...],
        source: Float[Tensor, "B S E"] | None = None,
        key: Float[Tensor, "B S P"] | None = None,
        padding_mask: Bool[Tensor, "B S"] | None = None,
    ) -> None:
        self.hidden = hidden
        self.source = source
        self.key = key
        self.padding_mask = padding_mask
        self.length = 0

    def append(self, hidden: tuple[Float[Tensor, "L B E"], ...], count: int) -> None:
        """After `count` more words the RNN is in this state."""
        self.hidden = hidden
        self.length += count

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        self.hidden = tuple(h.index_select(1, rows) for h in self.hidden)
        self.source = None if self.source is None else self.source.index_select(0, rows)
        self.key = None if self.key is None else self.key.index_select(0, rows)
        self.padding_mask = (
            None if self.padding_mask is None else self.padding_mask.index_select(0, rows)
        )
