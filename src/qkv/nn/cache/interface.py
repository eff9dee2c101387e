"""The interface of KV caches and other decoding states.

State is an argument of a forward pass, never an attribute of a layer. Layers and models call the
methods of `Cache` and know no kind of cache; a decoding loop needs `length` and `reorder`.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.attention.mask import Mask

Attend = Callable[[Tensor, Tensor, Tensor, Mask | None], tuple[Tensor, Tensor | None]]
"""From queries (B, H, T, D), keys, values and a padding mask to the heads and their weights."""
KeysAndValues = Callable[[], tuple[Tensor, Tensor]]
"""Computes the keys and values (B, K, S, D) of a source."""


class Cache:
    """What layers and models ask of a state. This one remembers nothing, as in training."""

    kind = ""
    """Name of the class that a model's `start` returns; empty if any model takes the state."""
    length = 0
    """Positions seen so far."""
    packed = False
    """One row holds tokens of several sequences."""
    is_source = False
    """It holds a source, for cross-attention."""
    encoded: Float[Tensor, "B S E"] | None = None
    """The encoder's output, from which keys and values of a source are computed."""
    rows: int | None = None
    """Rows of the target that a source is for, if there is one for each."""
    padding_mask: Bool[Tensor, "B S"] | None = None
    """False for padding, if the state knows it."""
    positions: Int[Tensor, "B T"] | None = None
    """Positions of the next tokens, if the state knows them."""

    @property
    def target(self) -> Cache:
        """The state of self-attention."""
        return self

    @property
    def source(self) -> Cache:
        """The state of cross-attention in an encoder-decoder."""
        raise ValueError("state: cross-attention needs a state with a source; use DecoderState")

    def extend(self, layer: int, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B S E"] | None:
        """Hidden states of earlier tokens and x, to compute keys from; None if they are x alone."""
        return None

    def append(
        self, layer: int, key: Float[Tensor, "B K T D"], value: Float[Tensor, "B K T X"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S X"]]:
        """Add the keys and values of T positions to a layer, and return all S that it has."""
        return key, value

    def source_keys(self, layer: int, compute: KeysAndValues) -> tuple[Tensor, Tensor]:
        """The keys and values of the source in a layer of cross-attention."""
        return compute()

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B K S D"],
        value: Float[Tensor, "B K S X"],
        attend: Attend,
        *,
        plain: Callable[[], bool],
    ) -> tuple[Float[Tensor, "B H T X"], Tensor | None]:
        """Attend from the queries to what `append` or `source_keys` returned.

        Args:
            layer: Number of the layer.
            query: The queries.
            key: The keys.
            value: The values.
            attend: Attention of a layer.
            plain: Whether the layer's attention has no bias, hook or change, so that a kernel may
                replace it.

        Returns:
            The output of every head, and the weights if the layer wants them.
        """
        return attend(query, key, value, None)

    def within_reach(self, x: Tensor | None) -> Tensor | None:
        """The columns of a (B, S) tensor, one per position, that attention can reach."""
        return x

    def snapshot(self) -> Cache:
        """The state as it is now, for a pass that may run again; it costs no copy of tensors."""
        return self

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]: for beam search."""

    def carried(self) -> dict[str, Tensor]:
        """What a later training step continues from: tensors (B, ...) without gradient."""
        return {}

    def continue_from(self, carried: dict[str, Tensor]) -> None:
        """Begin with what `carried` returned in an earlier step."""


NO_STATE = Cache()


def check_state(state: Cache | None, kind: str) -> Cache:
    """The state, or one that remembers nothing for None; raises if another model needs it."""
    if state is None:
        return NO_STATE

    if getattr(state, "kind", None) not in ("", kind):
        raise TypeError(
            f"state: expected the {kind} that start() gives, not {type(state).__name__}"
        )

    return state


def check_rows(cached: int, rows: int) -> None:
    """Raise unless the input has as many rows as the state."""
    if cached != rows:
        raise ValueError(f"state: it has {cached} rows, and the input has {rows}")


def reorder_optional(x: Tensor | None, rows: Int[Tensor, "B"]) -> Tensor | None:
    """The given rows of a tensor, or None for None."""
    return None if x is None else x.index_select(0, rows)
