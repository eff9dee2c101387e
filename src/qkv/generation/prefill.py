"""Read ids, and say what may come next. Prefill and step are this one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.search.ensemble import Ensemble, mean_of
from qkv.models import GPT
from qkv.nn.cache import SegmentMemory, StaticCache


@torch.no_grad()
def read(
    model: Any, ids: Int[Tensor, "B T"], state: Any, padding_mask: Bool[Tensor, "B S"] | None = None
) -> Float[Tensor, "B V"]:
    """Scores of the next word; of a prompt only the last word's are computed."""
    if isinstance(model, Ensemble):
        return mean_of(
            [read(each, ids, own) for each, own in zip(model.models, state.states, strict=True)]
        )

    if isinstance(state, StaticCache):
        hidden = model.hidden(
            ids, padding_mask=state.padding_mask, positions=state.positions, state=state
        )
    elif isinstance(model, GPT):
        segment = model.config.context if isinstance(state, SegmentMemory) else ids.shape[1]
        for piece in ids.split(segment, dim=1):  # Transformer-XL reads as it was trained to
            hidden = model.hidden(piece, padding_mask=padding_mask, state=state)
    else:
        hidden = model.hidden(ids, state=state)

    return model.logits(hidden[:, -1])  # (B, T, E) -> (B, V)


def padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Texts of different lengths in one tensor, with padding before the shorter ones; and where
    their words are.
    """
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    if all(len(row) == longest for row in rows):
        return ids, None

    first = torch.tensor([[longest - len(row)] for row in rows], device=device)  # (B, 1)

    return ids, torch.arange(longest, device=device) >= first
