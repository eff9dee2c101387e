"""Which heads to walk first: those that attend strongly to something that tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.walk.head_walk import HeadName
from qkv.models.model import Model, backbone_of

WALK_MAX_TOKENS = 48
"""Text length up to which a page has walks by default."""
WALK_MAX_BYTES = 4_000_000
"""Size of all walks of a page."""
BYTES = 16 / 3
"""Of one float32 number in base64."""
LENS_BYTES = 500
"""Of the lens at one position: fifteen tokens with their probabilities."""


def telling_heads(attention: CapturedAttention, special: Collection[int] = ()) -> list[HeadName]:
    """The captured heads of one kind of attention, the most telling first.

    A head tells the more, the larger the largest weight of its queries is on average. The query's
    own token, the first token and special tokens do not count: a head that has nothing to do
    attends there.

    Args:
        attention: The captured weights.
        special: Ids of special tokens.
    """
    T = len(attention.rows.ids)
    S = len(attention.columns.ids)
    telling = torch.ones(T, S)
    if attention.kind != "cross":
        telling.fill_diagonal_(0)
        telling[:, 0] = 0

    for position, id in enumerate(attention.columns.ids):
        if id in special:
            telling[:, position] = 0

    found: list[tuple[float, HeadName]] = []
    for layer, weights in attention.layers.items():
        for head, strength in enumerate(strengths(weights, telling)):
            found.append((-strength, (attention.kind, layer, head)))

    return [name for _, name in sorted(found)]


def strengths(weights: Float[Tensor, "H T S"], telling: Float[Tensor, "T S"]) -> list[float]:
    """The largest weight on a telling key, averaged over the queries, of each head."""
    return (weights * telling).amax(-1).mean(-1).tolist()


def affordable(
    model: Model, names: Iterable[HeadName], attention: Collection[CapturedAttention]
) -> Iterator[HeadName]:
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
