"""Weight-only int8 quantization: a quarter of the memory, and several times as fast on a CPU.

Matrices and token embeddings become bytes. Norms, biases and positions stay float32, and so do all
activations. The result has the same class, hook points and state as the original.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from qkv.models.model import Model, backbone_of, uncompiled
from qkv.models.variants.own_gpt import OwnGPT
from qkv.nn.embedding import Embedding
from qkv.nn.linear.int8 import Int8Embedding, Int8Matrix
from qkv.nn.linear.linear import Linear


def int8(model: Model) -> Model:
    """Quantize the weights of a trained model to int8, for inference on a CPU.

    Args:
        model: A GPT, BERT, Transformer or TaskModel in float32 on a CPU; it is not changed.

    Returns:
        A copy in evaluation mode with int8 matrices; it shares all other weights with `model`.

    Raises:
        TypeError: If the model is an RNN.
        ValueError: If the model is int8 already, or not float32 on a CPU.

    Example:
        >>> import torch
        >>> from qkv.models import GPTConfig, build, int8
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> int8(model)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 10])
    """
    model = uncompiled(model)
    check_quantizable(model)

    # The memo makes deepcopy create new modules around the same weights.
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)

    copy = deepcopy(model, memo)
    for module in list(copy.modules()):
        if isinstance(module, Linear):
            replace(module, "weight", Int8Matrix(module.weight))
        elif isinstance(module, Embedding):
            replace(module, "token", Int8Embedding(Int8Matrix(module.token.weight)))

    return copy.eval()


def check_quantizable(model: Model) -> None:
    if not backbone_of(model).stacks:
        raise TypeError(
            "model: expected a Transformer, GPT or BERT, whose matrices int8 supports, not an RNN"
        )
    if isinstance(backbone_of(model), OwnGPT):
        raise TypeError(
            "model: int8 supports the package's own layers, and this is a GPT of your own"
        )
    if any(isinstance(module, Int8Matrix) for module in model.modules()):
        raise ValueError("model: it is int8 already")

    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ValueError(
                f"model: expected float32 on a CPU, and {name} is {weight.dtype} on {weight.device}"
            )


def replace(module: nn.Module, name: str, new: nn.Module) -> None:
    delattr(module, name)
    setattr(module, name, new)
