"""Weight-only int8: a trained model in a quarter of the memory, several times as fast on a CPU,
hardly less sure.

Matrices and word embeddings become bytes. Norms, biases and positions stay as they are, and so does
all that is computed from word to word: float32. To everyone else it is the same model, with the
same class, taps and state.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from qkv.models.registry import Model, uncompiled
from qkv.models.rnn import RNN
from qkv.nn.embedding import Embedding
from qkv.nn.linear.int8 import Int8Embedding, Int8Matrix
from qkv.nn.linear.linear import Linear


def int8(model: Model) -> Model:
    """A copy with its matrices as bytes. What stays as it is, is shared with the old model, which
    is not changed.
    """
    model = uncompiled(model)
    if isinstance(model, RNN):
        raise TypeError(
            "model: expected a Transformer, GPT or BERT, whose matrices int8 knows, not an RNN"
        )
    if any(isinstance(part, Int8Matrix) for part in model.modules()):
        raise ValueError("model: it is int8 already")

    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ValueError(
                f"model: expected float32 on a CPU, and {name} is {weight.dtype} on {weight.device}"
            )

    frozen = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for weight in model.parameters()
    }
    copy = deepcopy(model, frozen)  # which makes new modules, and no new weights

    for part in list(copy.modules()):
        if isinstance(part, Linear):
            replace(part, "weight", Int8Matrix(part.weight))
        elif isinstance(part, Embedding):
            replace(part, "token", Int8Embedding(Int8Matrix(part.token.weight)))

    return copy.eval()


def replace(part: nn.Module, name: str, by: nn.Module) -> None:
    delattr(part, name)
    setattr(part, name, by)
