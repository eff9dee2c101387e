"""What a task puts on top of a model's hidden states."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.feed_forward import Activation, activate
from qkv.nn.linear import Linear
from qkv.nn.norm import LayerNorm


class MaskedWordHead(nn.Module):
    """BERT's transform before the word embedding is used as the output layer, and the output's bias."""

    def __init__(self, width: int, vocabulary: int, activation: Activation, norm_epsilon: float) -> None:
        super().__init__()
        self.dense = Linear(width, 2 * width if activation == "swiglu" else width)
        self.norm = LayerNorm(width, norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation: Activation = activation

    def forward(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return self.norm(activate(self.dense(hidden), self.activation))


class Pooler(nn.Module):
    """A sentence's vector: tanh of a layer over its first word, [CLS]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        return torch.tanh(self.dense(hidden[:, 0]))
