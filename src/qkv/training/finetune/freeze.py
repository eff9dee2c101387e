"""Which parameters are trained: all, the last layers, the head, or LoRA adapters."""

from __future__ import annotations

import re

from qkv.models.model import Model, backbone_of
from qkv.nn.lora import attach_adapters
from qkv.training.finetune.finetune_config import FinetuneConfig

ABOVE = re.compile(r"(^|\.)(head|pooler|stack\.norm|decoder\.norm)\.")
"""Parameters above the last block."""


def freeze(model: Model, tune: FinetuneConfig, *, language_loss: bool, seed: int = 0) -> float:
    """Freeze what is not trained and attach adapters; return the trained fraction of parameters.

    `language_loss` is whether the loss uses the output layer of a language model.
    """
    if not model.stacks and tune.train != "everything":
        raise ValueError(f"train: an RNN has no blocks, so expected everything, not {tune.train}")

    total = sum(parameter.numel() for parameter in model.parameters())
    trained = trained_names(model, tune)
    if not language_loss:
        trained.discard("backbone.head.weight")  # a GPT's output layer has no gradient then

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)

    if tune.adapters is not None:
        attach_adapters(backbone_of(model), tune.adapters, seed)

    return count_trainable(model) / total


def trained_names(model: Model, tune: FinetuneConfig) -> set[str]:
    """The names of the parameters that are trained, adapters apart."""
    names = {name for name, _ in model.named_parameters()}
    if tune.train == "everything":
        return names

    trained: set[str] = set()
    if model.task is not None:
        trained = {name for name in names if name.startswith("head.")}
    if tune.train == "last":
        trained |= last_layers(model, tune.last)

    return trained


def backward_fraction(tune: FinetuneConfig, depth: int) -> float:
    """Fraction of the layers that gradients pass through."""
    if tune.train == "head":
        return 0.0
    if tune.train == "last":
        return min(1.0, tune.last / depth)

    return 1.0


def count_trainable(model: Model) -> int:
    """Number of trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def last_layers(model: Model, count: int) -> set[str]:
    """Names of the parameters of the last blocks, and of everything above them."""
    blocks = list(model.stacks.values())[-1].blocks
    if count > len(blocks):
        raise ValueError(f"last: the model has {len(blocks)} layers, not {count}")

    inside = {parameter for block in blocks[-count:] for parameter in block.parameters()}
    names: set[str] = set()
    for name, parameter in model.named_parameters():
        if parameter in inside or ABOVE.search(name):
            names.add(name)

    return names
