"""What a page says of all heads: their names, the telling ones, and what can be left out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from qkv.insight.heads.head_names import SENTENCES, name_heads, shares_of, telling_heads
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.weight_shares import sinks
from qkv.insight.render.page_encoding import numbers


def with_shares(look: LookData) -> list[CapturedAttention]:
    """The attention of a look, with the weight shares that names need where these can be had."""
    return [attention._replace(shares=shares_of(attention)) for attention in look.attention]


def described_heads(attention: CapturedAttention) -> dict[str, Any]:
    """For JSON: by layer the name of each head with its share and position, or None; sentences of
    these names, and which of them were measured; all heads from the most telling; the keys that can
    be left out, and their share.
    """
    shares = attention.shares
    described: dict[str, Any] = {
        "patterns": None,
        "sentences": {},
        "measured": [],
        "telling": None,
        "sinks": sinks(attention.kind, attention.columns),
        "sunk": None,
    }
    if shares is None or attention.names:
        return described

    used = set()
    patterns: list[list[Any]] = []
    for row in name_heads(attention):
        patterns.append([])
        for name in row:
            if name is None:
                patterns[-1].append(None)
            else:
                used.add(name.name)
                patterns[-1].append([name.name, float(f"{name.share:.3g}"), name.position])

    heads = attention.heads
    return described | {
        "patterns": patterns,
        "sentences": {name: text for name, text in SENTENCES.items() if name in used},
        "measured": list(shares.measured),
        "telling": [layer * heads + head for layer, head in telling_heads(attention)],
        "sunk": numbers(shares.left_out),
    }


def first_head(
    attention: CapturedAttention, layers: Collection[int], heads: Collection[int]
) -> tuple[int, int]:
    """The most telling head among these layers and heads."""
    for layer, head in telling_heads(attention):
        if layer in layers and head in heads:
            return layer, head

    return min(layers, default=0), min(heads, default=0)


def check_same_tokens(look: LookData, other: LookData) -> None:
    """Raise ValueError unless two models have read the same tokens in the same kinds of attention.

    Only then their weights have the same rows and columns.
    """
    kinds = {attention.kind: attention for attention in look.attention}
    others = {attention.kind: attention for attention in other.attention}
    if kinds.keys() != others.keys():
        raise ValueError(
            f"against: {other.model} has {', '.join(others) or 'no'} attention, {look.model} has "
            f"{', '.join(kinds) or 'none'}; expected two models of one kind"
        )

    for kind, attention in kinds.items():
        for one, two in (
            (attention.rows, others[kind].rows),
            (attention.columns, others[kind].columns),
        ):
            if one.tokens != two.tokens:
                raise ValueError(
                    f"against: {other.model} reads the text as {len(two.tokens)} tokens, not as "
                    f"the {len(one.tokens)} of {look.model}; expected a model that reads the same"
                )
