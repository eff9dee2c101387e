"""Heads on top of a model's hidden states: masked tokens, the pooler, and pooling for tasks.

    task           input                    answer         sequences and what the head reads
    pre-training   tokens                   a token        features x token embedding
    classify       one text                 a class        [start] text [extract]: extract's vector
    pair           two texts                a class        [start] a [delimiter] b [extract]
    similarity     two texts                class, number  (a, b) and (b, a): sum of both vectors
    choice         a context and n endings  one of n       (context, ending i): one score each
    tag            words                    a class each   every word's vector
    regress        one text                 a number       [start] text [extract]: extract's vector

The special tokens are GPT-1's. A BERT reads [CLS] a [SEP] b [SEP], and its first token, or the mean
of all, is the text's vector.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import HeadConfig as HeadConfig
from qkv.models.configs import Pooling
from qkv.nn.feed_forward import activate
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm
from qkv.nn.stack_config import Activation


class MaskedTokenHead(nn.Module):
    """BERT's transform of hidden states before the (tied) output layer, and that layer's bias."""

    def __init__(
        self, width: int, vocabulary: int, activation: Activation, norm_epsilon: float
    ) -> None:
        super().__init__()
        outputs = width
        if activation == "swiglu":  # one half is the gate of the other
            outputs = 2 * width

        self.dense = Linear(width, outputs)
        self.norm = LayerNorm(width, norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation: Activation = activation

    def forward(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return self.norm(activate(self.dense(hidden), self.activation))


class Pooler(nn.Module):
    """BERT's vector of a text: tanh of a linear layer over its first token, [CLS]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        return torch.tanh(self.dense(hidden[:, 0]))


def pooled(
    hidden: Float[Tensor, "R T E"],
    pooling: Pooling,
    target_positions: Int[Tensor, "R"],
    padding_mask: Bool[Tensor, "R T"] | None,
) -> Float[Tensor, "R E"]:
    """Return one vector per text: that at its target position, or the mean over its tokens."""
    if pooling != "mean":
        rows = torch.arange(len(hidden), device=hidden.device)
        return hidden[rows, target_positions.clamp(min=0)]
    if padding_mask is None:
        return hidden.mean(1)

    weights = padding_mask.unsqueeze(-1).to(hidden.dtype)  # (R, T, 1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
