"""The decoding state of an RNN: its hidden vectors and, with attention, the encoder's outputs."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.cache.interface import Cache, reorder_optional


class RecurrentState(Cache):
    """An RNN's hidden vectors (an LSTM's cells too), and what a decoder's attention reads.

    Without hidden vectors it is the state before the first token of a language model, for any
    number of rows.
    """

    kind = "RecurrentState"

    def __init__(
        self,
        hidden: tuple[Float[Tensor, "L B E"], ...],
        encoded: Float[Tensor, "B S E"] | None = None,
        key: Float[Tensor, "B S P"] | None = None,
        padding_mask: Bool[Tensor, "B S"] | None = None,
    ) -> None:
        self.hidden = hidden
        self.encoded = encoded
        self.key = key
        self.padding_mask = padding_mask
        self.length = 0

    def advance(self, hidden: tuple[Float[Tensor, "L B E"], ...], count: int) -> None:
        """Replace the hidden vectors by those after `count` more tokens."""
        self.hidden = hidden
        self.length += count

    @property
    def rows(self) -> int | None:  # type: ignore[override]
        return self.hidden[0].shape[1] if self.hidden else None

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        self.hidden = tuple(h.index_select(1, rows) for h in self.hidden)
        self.encoded = reorder_optional(self.encoded, rows)
        self.key = reorder_optional(self.key, rows)
        self.padding_mask = reorder_optional(self.padding_mask, rows)

    def carried(self) -> dict[str, Tensor]:
        return {str(i): h.detach().transpose(0, 1) for i, h in enumerate(self.hidden)}

    def continue_from(self, carried: dict[str, Tensor]) -> None:
        ordered = sorted(carried.items())
        self.hidden = tuple(h.transpose(0, 1).contiguous() for _, h in ordered)
