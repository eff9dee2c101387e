"""What a task puts on top of a model's hidden states.

pre-training       guess a word                 features x word embedding
classify           one text     -> a class      [start] text [extract]              extract's vector x W
pair               two texts    -> a class      [start] a [delimiter] b [extract]   extract's vector x W
similarity         two texts    -> a class      (a, b) and (b, a): both vectors added, x W
                                or a number
choice             a context, n -> one of n     (context, choice 1) ... (context, choice n): a score each, softmax
tag                words        -> a class each every word's vector x W
regress            a text       -> a number     extract's vector x w

The marks are GPT-1's. A BERT reads [CLS] a [SEP] b [SEP], and its first word, or the mean of all, is the text's vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.nn.config import check_at_least_one, check_fields, check_probability
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


HeadTask = Literal["classify", "pair", "similarity", "choice", "tag", "regress"]
Pooling = Literal["last", "first", "mean"]


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    task: HeadTask
    """What is asked."""
    labels: tuple[str, ...] = ()
    """The classes by name, in the order of their ids; none where the answer is a number or a choice."""
    pooling: Pooling = "last"
    """The vector of a text: its last word's (a GPT's, which has read all of it), its first word's, or the mean."""
    dropout: float = 0.1
    """Probability to drop a number of that vector in training."""
    bias: bool = False
    """GPT-1's head has none, BERT's has one."""
    start: int | None = None
    """The id that a text begins with, if any."""
    delimiter: int
    """The id between two texts."""
    extract: int
    """The id at the end."""
    padding: int
    """The id that fills shorter rows up; it is never looked at."""
    context: int | None = None
    """The longest row, marks included; the body's unless given."""
    offset: float = 0.0
    """Of numbers: what 0 stands for in the data."""
    scale: float = 1.0
    """Of numbers: what 1 stands for beyond that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))  # JSON has lists
        check_fields(self)
        check_probability(self, "dropout")
        check_at_least_one(self, "context")
        if self.labels and self.task in ("choice", "regress"):
            raise ValueError(f"labels: {self.task} has no classes; leave them out")
        if len(self.labels) < 2 and self.task in ("classify", "pair", "tag"):
            raise ValueError(f"labels: {self.task} expects two classes or more, not {len(self.labels)}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels: a class is named twice")

    @property
    def numbers(self) -> bool:
        """Whether the answer is a number."""
        return not self.labels and self.task != "choice"

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1


def pooled(
    hidden: Float[Tensor, "R T E"], pooling: Pooling, places: Int[Tensor, "R"], keep: Bool[Tensor, "R T"] | None
) -> Float[Tensor, "R E"]:
    """A vector for each text: that of the word at its place, or the mean of its words."""
    if pooling != "mean":
        return hidden[torch.arange(len(hidden), device=hidden.device), places.clamp(min=0)]
    if keep is None:
        return hidden.mean(1)
    kept = keep.unsqueeze(-1).to(hidden.dtype)  # (R, T, 1)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)
