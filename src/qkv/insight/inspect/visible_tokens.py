"""Which tokens a token may see, by the mask of its model."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.models import RNN, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.nn.attention import Causal, all_of


def visible(model: Model, kind: str, query: Int[Tensor, "T"], S: int) -> Bool[Tensor, "T S"]:
    """Which of S tokens some of them see, where a text looks at itself: self, or of a translator
    encoder, decoder.
    """
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        raise ValueError("model: an RNN's text does not look at itself; expected another")

    if isinstance(backbone, Transformer):
        mask = all_of(Causal() if kind == "decoder" else None, backbone.config.sparsity())
    else:
        mask = backbone.mask(None, None)

    if mask is None:
        return torch.ones(len(query), S, dtype=torch.bool)

    return mask.at(query.unsqueeze(1), torch.arange(S))[0, 0]
