"""The parts of each position's logit, as the page reads them."""

from __future__ import annotations

from typing import Any

import torch

from qkv.insight.attribute.logit_attribution import LogitParts
from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.page_encoding import rounded


def described_parts(look: LookData) -> dict[str, Any] | None:
    """The names of the columns, and for each position a number for each layer and column.

    The columns are the heads of a layer, of a translator then those of its cross-attention, the
    bias of attention's output and the feed-forward layer.
    """
    if not look.parts:
        return None

    first = look.parts[0]
    heads = first.heads.shape[1]
    return {
        "heads": heads,
        "cross": 0 if first.cross_heads is None else first.cross_heads.shape[1],
        "positions": [described_position(look, split) for split in look.parts],
    }


def described_position(look: LookData, split: LogitParts) -> dict[str, Any]:
    """The numbers of one position, and the token whose logit is explained."""
    columns = [split.heads]
    if split.cross_heads is not None:
        columns.append(split.cross_heads)

    columns += [split.attention_bias.unsqueeze(1), split.feed_forward.unsqueeze(1)]
    token = f"token {split.token}"
    for guess in look.next[split.position] if look.next else ():
        if guess.id == split.token:
            token = " " * look.leading_spaces.get(guess.id, 0) + guess.text

    return {
        "token": token,
        "total": rounded(split.total),
        "embedding": rounded(split.embedding),
        "positional": rounded(split.positional),
        "bias": rounded(split.bias),
        "layers": rounded(torch.cat(columns, dim=1).tolist()),
    }
