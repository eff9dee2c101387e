"""Prefill and decode step: one forward pass over new tokens, and the logits of the next one."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.search.ensemble import Ensemble, mean_of
from qkv.nn.linear.frozen_matrix import quantized_activations


@torch.no_grad()
@quantized_activations()
def next_logits(
    model: Any,
    ids: Int[Tensor, "B T"],
    state: Any,
    padding_mask: Bool[Tensor, "B S"] | None = None,
    *,
    last: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "B V"]:
    """Run new tokens through the model and return the logits of the token after the last one.

    Args:
        model: A GPT, Transformer, RNN or ensemble.
        ids: A prompt (prefill), or one token per row (decode step).
        state: The model's state, to which the tokens are appended.
        padding_mask: False for padding before prompts, of all tokens so far.
        last: Index of the last token, if padding follows it; by default T - 1.
    """
    if isinstance(model, Ensemble):
        pairs = zip(model.models, state.states, strict=True)
        return mean_of([next_logits(member, ids, member_state) for member, member_state in pairs])

    hidden = model.decoder_hidden(ids, state=state, padding_mask=padding_mask)
    if last is not None:
        hidden = hidden.index_select(1, last)  # (B, 1, E)

    return model.logits(hidden[:, -1])  # (B, T, E) -> (B, V)
