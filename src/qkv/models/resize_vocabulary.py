"""A model with a larger vocabulary: rows for new words, the old ones as they were."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qkv.models.bert import BERT
from qkv.models.gpt import GPT
from qkv.models.registry import with_weights


def with_vocabulary(model: GPT | BERT, vocabulary: int, seed: int = 0) -> GPT | BERT:
    """New words begin near the mean of the old ones, as far from it as those are: no word is far
    likelier at first.
    """
    old = model.config.vocabulary
    if vocabulary < old:
        raise ValueError(f"vocabulary: expected at least the model's {old:,}, not {vocabulary:,}")
    if vocabulary == old:
        return model

    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    for name, tensor in model.state_dict().items():
        if name in ("embedding.token.weight", "head.weight", "head.bias"):
            new = tensor.new_zeros(vocabulary - old, *tensor.shape[1:])
            if tensor.dim() == 2:
                drawn = torch.randn(new.shape, generator=generator).to(tensor)
                new = tensor.mean(0) + drawn * tensor.std()

            tensor = torch.cat([tensor, new])

        weights[name] = tensor.detach().clone()

    grown = with_weights(replace(model.config, vocabulary=vocabulary), weights)
    assert isinstance(grown, GPT | BERT)

    return grown.train(model.training)
