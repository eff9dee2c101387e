"""Which heads a page walks: the telling ones first, as many as it has room for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from qkv.insight.heads.head_names import telling_heads
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.walk.head_walk import HeadSite
from qkv.models.model import Model, backbone_of

WALK_MAX_TOKENS = 48
"""Text length up to which a page has walks by default."""
WALK_MAX_BYTES = 4_000_000
"""Size of all walks of a page."""
BYTES = 16 / 3
"""Of one float32 number in base64."""
LENS_BYTES = 500
"""Of the lens at one position: fifteen tokens with their probabilities."""


def walks_first(attention: CapturedAttention) -> list[HeadSite]:
    """The captured heads of one kind of attention, the most telling first."""
    sites: list[HeadSite] = []
    for layer, head in telling_heads(attention):
        if layer in attention.layers:
            sites.append((attention.kind, layer, head))

    return sites


def affordable(
    model: Model, names: Iterable[HeadSite], attention: Collection[CapturedAttention]
) -> Iterator[HeadSite]:
    """The heads whose walks fit on a page, in this order, and the first in any case."""
    by_kind = {captured.kind: captured for captured in attention}
    left = float(WALK_MAX_BYTES)
    for number, (kind, layer, head) in enumerate(names):
        left -= walk_bytes(model, by_kind[str(kind)])
        if number and left < 0:
            return

        yield kind, layer, head


def walk_bytes(model: Model, attention: CapturedAttention) -> float:
    """About how many bytes the walk of one head has on a page."""
    config = backbone_of(model).config
    T = len(attention.rows.ids)
    S = len(attention.columns.ids)
    if not model.stacks:
        return BYTES * (2 * T + 2 * S) * config.width + BYTES * 2 * T * S

    D = config.width_of_head
    vectors = (2 * T + 2 * S) * D
    if config.position == "rotary":
        vectors += (T + S) * D

    matrices = 4 * T * S
    return BYTES * (vectors + matrices + T * config.width) + LENS_BYTES * T
