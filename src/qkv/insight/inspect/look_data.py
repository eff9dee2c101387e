"""What one look at a text contains: attention, next tokens, logit lens, norms, attribution.

`qkv.insight.look.Look` adds saving and notebook display. Code that draws a look depends on
`LookData` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.attribute.logit_attribution import LogitParts
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.model_input import Reading
from qkv.insight.inspect.residual_norms import Norms
from qkv.insight.walk.head_walk import HeadName, HeadWalk
from qkv.insight.walk.model_walk import ModelWalk

ALL_LAYERS_MAX_WEIGHTS = 160_000_000
"""Attention weights up to which all layers are kept: 1,024 tokens, 12 layers of 12 heads."""

LENS_MAX_TOKENS = 256
"""Text length up to which the logit lens is computed by default: it costs a distribution over the
vocabulary for each layer and position."""

NORMS_MAX_TOKENS = 1024
"""Text length up to which the norms are computed by default: they need a backward pass."""

ATTRIBUTION_MAX_TOKENS = 48
"""Text length up to which a page has attributions: these need one gradient for each position."""


@dataclass(frozen=True, eq=False, repr=False)
class LookData:
    """Everything that one look at a text has captured or computed."""

    model: str
    """The name of the model, for titles."""
    reading: Reading
    """The tokens as the model reads them."""
    attention: list[CapturedAttention]
    """One entry for each kind of attention; empty for an RNN without attention or if it was not
    captured."""
    next: list[list[Guess]] | None
    """The likeliest tokens at each position; None for an encoder without a token head."""
    lens: list[list[list[Guess]]] | None
    """The logit lens: the likeliest tokens after the embedding and after each layer."""
    norms: Norms | None
    """Norms of the residual stream and of its gradient."""
    attribution: Float[Tensor, "T S"] | None = None
    """|gradient x input| of each position's likeliest token for each input token; a row sums to
    1."""
    bidirectional: bool = False
    """True for a BERT, which predicts the token at a position; others predict the next token."""
    walks: dict[HeadName, HeadWalk] | None = None
    """The walks of some heads, by kind, layer and head."""
    texts: tuple[str, ...] = ()
    """The texts as given, for a translator the source and the target; empty if only tokens are
    known."""
    parts: list[LogitParts] | None = None
    """The logit of the likeliest token at each position, split into the parts of the model."""
    leading_spaces: Mapping[int, int] = field(default_factory=dict)
    """The spaces that tokens begin with, by id: `reading` and the guesses have none."""
    model_walk: ModelWalk | None = None
    """The walk through the whole model."""

    def __repr__(self) -> str:
        kinds = []
        for attention in self.attention:
            kinds.append(f"{attention.kind} ({attention.depth} layers of {attention.heads} heads)")

        name = type(self).__name__
        described = ", ".join(kinds) or "no attention"
        return f"{name}({self.model!r}, {len(self.reading.text.ids)} tokens, {described})"

    def of(self, kind: str | None = None) -> CapturedAttention:
        """Return one kind of attention.

        Args:
            kind: `self`, or for a translator `encoder`, `decoder` or `cross`. By default the
                cross-attention of a translator, the self-attention of any other model.

        Raises:
            ValueError: If the look has no attention, or none of this kind.
        """
        by_kind = {attention.kind: attention for attention in self.attention}
        if not by_kind:
            raise ValueError(
                "attention: this look has none: an RNN without attention has no weights, and "
                "attention=False captures none"
            )

        if kind is None:
            return by_kind.get("cross", self.attention[0])
        if kind not in by_kind:
            raise ValueError(f"kind: this model has {', '.join(by_kind)}, not {kind}")

        return by_kind[kind]
