"""The interface of KV caches and other decoding states, and the checks that they share.

State is an argument of a forward pass, never an attribute of a layer. Every state has `length`
(positions seen so far) and `reorder` (beam search: row i continues the old row rows[i]), so one
decoding loop serves RNNs and Transformers alike. Layers `append` to it.
"""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Int
from torch import Tensor


class DecodingState(Protocol):
    """What a decoding loop needs to know of a state."""

    @property
    def length(self) -> int: ...

    def reorder(self, rows: Int[Tensor, "B"]) -> None: ...


def check_rows(cached: int, rows: int) -> None:
    """Raise unless the input has as many rows as the state."""
    if cached != rows:
        raise ValueError(f"state: it has {cached} rows, and the input has {rows}")


def reorder_optional(x: Tensor | None, rows: Int[Tensor, "B"]) -> Tensor | None:
    """The given rows of a tensor, or None for None."""
    return None if x is None else x.index_select(0, rows)
