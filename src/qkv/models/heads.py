"""What a task puts on top of a model's hidden states.

pre-training       guess a word                 features x word embedding classify           one
text     -> a class      [start] text [extract]              extract's vector x W pair
two texts    -> a class      [start] a [delimiter] b [extract]   extract's vector x W similarity
two texts    -> a class      (a, b) and (b, a): both vectors added, x W or a number choice
a context, n -> one of n     (context, choice 1) ... (context, choice n): a score each, softmax tag
words        -> a class each every word's vector x W regress            a text       -> a number
extract's vector x w

The marks are GPT-1's. A BERT reads [CLS] a [SEP] b [SEP], and its first word, or the mean of all,
is the text's vector.
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
    """BERT's transform before the word embedding is used as the output layer, and the output's
    bias.
    """

    def __init__(
        self, width: int, vocabulary: int, activation: Activation, norm_epsilon: float
    ) -> None:
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


def pooled(
    hidden: Float[Tensor, "R T E"],
    pooling: Pooling,
    target_positions: Int[Tensor, "R"],
    padding_mask: Bool[Tensor, "R T"] | None,
) -> Float[Tensor, "R E"]:
    """A vector for each text: that of the word at its place, or the mean of its words."""
    if pooling != "mean":
        return hidden[
            torch.arange(len(hidden), device=hidden.device), target_positions.clamp(min=0)
        ]
    if padding_mask is None:
        return hidden.mean(1)

    kept = padding_mask.unsqueeze(-1).to(hidden.dtype)  # (R, T, 1)

    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)
