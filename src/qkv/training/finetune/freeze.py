"""How much of a model learns: everything, its last layers, its head, or adapters beside frozen
matrices.
"""

from __future__ import annotations

import re
from typing import Any

from qkv.models.gpt import GPT
from qkv.models.registry import Model, backbone_of
from qkv.models.rnn import RNN
from qkv.models.task_model import TaskModel
from qkv.models.transformer import Transformer
from qkv.nn.block import Block
from qkv.nn.lora import attach
from qkv.training.finetune.finetune_config import FinetuneConfig

ABOVE = re.compile(r"(^|\.)(head|pooler|stack\.norm|decoder\.norm)\.")
"""What stands on top of the last layer."""


def freeze(model: Model, tune: FinetuneConfig, *, says_words: bool, seed: int = 0) -> float:
    """What is not to learn is frozen; the fraction of the parameters that do learn. `says_words` is
    whether the output layer of a language model takes part."""
    adapters = tune.adapters
    if isinstance(model, RNN) and tune.train != "everything":
        raise ValueError(f"train: an RNN has no blocks, so expected everything, not {tune.train}")

    learns = last_layers(model, tune.last) if tune.train == "last" else None
    total = sum(parameter.numel() for parameter in model.parameters())

    for name, parameter in model.named_parameters():
        above = name.startswith("head.") if isinstance(model, TaskModel) else False
        if learns is not None:
            above = above or name in learns

        parameter.requires_grad_(tune.train == "everything" or above)
        if unused_output(model, name) and not says_words:
            parameter.requires_grad_(False)

    if adapters is not None:
        attach(backbone_of(model), adapters, seed)

    return learning_in(model) / total


def passed_through(tune: FinetuneConfig, depth: int) -> float:
    """The fraction of the layers that gradients pass: none below a head alone, the last ones, or
    all.
    """
    return {"head": 0.0, "last": min(1.0, tune.last / depth)}.get(tune.train, 1.0)


def learning_in(model: Model) -> int:
    """How many numbers learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def last_layers(model: Model, count: int) -> set[str]:
    """The names of the parameters of the last blocks, and of what stands above them."""
    stack: Any = (
        model.decoder if isinstance(model, Transformer) else getattr(model, "backbone", model).stack
    )
    blocks = [module for module in stack.modules() if isinstance(module, Block)]
    if count > len(blocks):
        raise ValueError(f"last: the model has {len(blocks)} layers, not {count}")

    inside = {parameter for block in blocks[-count:] for parameter in block.parameters()}

    return {
        name
        for name, parameter in model.named_parameters()
        if parameter in inside or ABOVE.search(name)
    }


def unused_output(model: Model, name: str) -> bool:
    """The output layer of a body that says no words has no gradient."""
    return (
        isinstance(model, TaskModel)
        and isinstance(model.backbone, GPT)
        and name == "backbone.head.weight"
    )
