"""Grow a model's vocabulary: rows for new tokens, with the old rows unchanged."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qkv.models.model import Model
from qkv.models.registry import with_weights

VOCABULARY_WEIGHTS = ("embedding.token.weight", "head.weight", "head.bias")


def with_vocabulary(model: Model, vocabulary: int, seed: int = 0) -> Model:
    """Return the model with a larger vocabulary.

    New rows are drawn around the mean of the old ones, with their spread, so that no new token is
    much likelier than the others at first.
    """
    old = model.config.vocabulary
    if vocabulary < old:
        raise ValueError(f"vocabulary: expected at least the model's {old:,}, not {vocabulary:,}")
    if vocabulary == old:
        return model

    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    for name, tensor in model.state_dict().items():
        if name in VOCABULARY_WEIGHTS:
            tensor = torch.cat([tensor, new_rows(tensor, vocabulary - old, generator)])

        weights[name] = tensor.detach().clone()

    grown = with_weights(replace(model.config, vocabulary=vocabulary), weights)
    return grown.train(model.training)


def new_rows(tensor: Tensor, count: int, generator: torch.Generator) -> Tensor:
    rows = tensor.new_zeros(count, *tensor.shape[1:])
    if tensor.dim() == 1:  # a bias
        return rows

    noise = torch.randn(rows.shape, generator=generator).to(tensor)
    return tensor.mean(0) + noise * tensor.std()
