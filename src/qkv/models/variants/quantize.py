"""Int8 and int4 quantization: less memory, and several times as fast on a CPU.

Matrices and token embeddings have 8 bits; of int4 the matrices have 4, except the output layer.
Norms, biases and positions stay float32. Generation and evaluation round what the matrices multiply
as well (qkv.nn.linear.int8 and int4); elsewhere activations are float32. The result has the same
class, hook points and state as the original.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from qkv.models.model import Model, backbone_of, uncompiled
from qkv.models.variants.own_gpt import OwnGPT
from qkv.nn.embedding import Embedding
from qkv.nn.linear.frozen_matrix import FrozenMatrix
from qkv.nn.linear.int4 import Int4Matrix
from qkv.nn.linear.int8 import Int8Embedding, Int8Matrix
from qkv.nn.linear.linear import Linear
from qkv.nn.linear.panel_matrix import Int4Panels, Int8Panels
from qkv.nn.native import native_library


def int8(model: Model) -> Model:
    """Quantize the weights of a trained model to int8, for inference on a CPU.

    Args:
        model: A GPT, BERT, Transformer or TaskModel in float32 on a CPU; it is not changed.

    Returns:
        A copy in evaluation mode with int8 matrices; it shares all other weights with `model`.

    Raises:
        TypeError: If the model is an RNN.
        ValueError: If the model is quantized already, or not float32 on a CPU.

    Example:
        >>> import torch
        >>> from qkv.models import GPTConfig, build, int8
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> int8(model)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 10])
    """
    return quantized(model, "int8", int8_matrix)


def int4(model: Model) -> Model:
    """Quantize a trained model to int4 in groups of 32 weights, for inference on a CPU.

    Token embeddings and the output layer have eight bits, because they lose most.

    Args:
        model: A GPT, BERT, Transformer or TaskModel in float32 on a CPU; it is not changed.

    Returns:
        A copy in evaluation mode with int4 matrices; it shares all other weights with `model`.

    Raises:
        TypeError: If the model is an RNN.
        ValueError: If the model is quantized already, or not float32 on a CPU.

    Example:
        >>> import torch
        >>> from qkv.models import GPTConfig, build, int4
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> int4(model)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 10])
    """
    return quantized(model, "int4", int4_matrix)


def int8_matrix(matrix: Tensor) -> FrozenMatrix:
    """A matrix in eight bits: for the compiled kernels, or for those of PyTorch."""
    return Int8Matrix(matrix) if native_library.library() is None else Int8Panels(matrix)


def int4_matrix(matrix: Tensor) -> FrozenMatrix:
    """A matrix in four bits: for the compiled kernels, or for those of PyTorch."""
    return Int4Matrix(matrix) if native_library.library() is None else Int4Panels(matrix)


def quantized(model: Model, kind: str, round_matrix: Callable[[Tensor], FrozenMatrix]) -> Model:
    """A copy whose linear layers have the rounded matrices."""
    model = uncompiled(model)
    check_quantizable(model, kind)

    # The memo makes deepcopy create new modules around the same weights.
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)

    copy = deepcopy(model, memo)
    output = getattr(backbone_of(copy), "head", None)
    for module in list(copy.modules()):
        if isinstance(module, Linear):
            rounded = int8_matrix if module is output else round_matrix
            replace(module, "weight", rounded(module.weight))
        elif isinstance(module, Embedding):
            replace(module, "token", Int8Embedding(int8_matrix(module.token.weight)))

    for module in copy.modules():
        if isinstance(module, FrozenMatrix):
            module.of_model = kind

    return copy.eval()


def check_quantizable(model: Model, kind: str) -> None:
    if not backbone_of(model).stacks:
        raise TypeError(
            f"model: expected a Transformer, GPT or BERT, whose matrices {kind} supports, "
            "not an RNN"
        )
    if isinstance(backbone_of(model), OwnGPT):
        raise TypeError(
            f"model: {kind} supports the package's own layers, and this is a GPT of your own"
        )
    for module in model.modules():
        if isinstance(module, FrozenMatrix):
            raise ValueError(f"model: it is {module.format} already")

    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ValueError(
                f"model: expected float32 on a CPU, and {name} is {weight.dtype} on {weight.device}"
            )


def replace(module: nn.Module, name: str, new: nn.Module) -> None:
    delattr(module, name)
    setattr(module, name, new)
