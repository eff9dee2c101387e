"""Build a model from its config, read and write configs as JSON, and load checked weights."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from qkv.models import legacy
from qkv.models.bert import BERT
from qkv.models.configs import (
    CONFIGS,
    BERTConfig,
    Config,
    GPTConfig,
    HeadConfig,
    ModelConfig,
    OwnGPTConfig,
    RNNConfig,
    RNNLMConfig,
    TaskModelConfig,
    TransformerConfig,
    family,
)
from qkv.models.gpt import GPT
from qkv.models.model import Model, uncompiled
from qkv.models.rnn import RNN, RNNLanguageModel
from qkv.models.task_model import TaskModel
from qkv.models.transformer import Transformer
from qkv.models.variants.own_gpt import OwnGPT
from qkv.models.without_numbers import without_numbers
from qkv.nn import own_parts
from qkv.nn.attention.multi_head import MultiHeadAttention, group_heads
from qkv.nn.stack_config import RotaryScaling

FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    "gpt": (GPTConfig, GPT),
    "own-gpt": (OwnGPTConfig, OwnGPT),
    "bert": (BERTConfig, BERT),
    "transformer": (TransformerConfig, Transformer),
    "rnn": (RNNConfig, RNN),
    "rnn-lm": (RNNLMConfig, RNNLanguageModel),
    "task_model": (TaskModelConfig, TaskModel),
}
"""The config and the model of each family, by the name that config.json has for it."""


def register_family(name: str, config_class: type[ModelConfig], model_class: type[Model]) -> None:
    """Add a model family of one's own: it is built, saved and loaded as the others are.

    Args:
        name: Its name in config.json.
        config_class: A subclass of `ModelConfig`, a frozen dataclass.
        model_class: A subclass of `Model`, built from such a config.

    Raises:
        ValueError: If the name is taken.
        TypeError: If the model is not a subclass of `Model`.

    Example:
        A whole family is in docs/extending.md. A name is used once:

        >>> from qkv.models import GPT, ModelConfig, register_family
        >>> register_family("gpt", ModelConfig, GPT)
        Traceback (most recent call last):
        ValueError: name: there is a family gpt already, expected another name
    """
    if name in FAMILIES and FAMILIES[name] != (config_class, model_class):
        raise ValueError(f"name: there is a family {name} already, expected another name")
    if not issubclass(model_class, Model):
        raise TypeError(f"model_class: expected a subclass of Model, not {model_class.__name__}")

    CONFIGS[name] = config_class
    FAMILIES[name] = (config_class, model_class)


def build(config: Config) -> Model:
    """Build a freshly initialised model from its config.

    Args:
        config: The config of any family, for example `preset("gpt-tiny")`.

    Returns:
        The model in training mode (dropout on), on PyTorch's default device.

    Raises:
        TypeError: If `config` is not the config of a model.

    Example:
        >>> from qkv.models import GPTConfig, build
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> type(model).__name__
        'GPT'
    """
    _, model_class = FAMILIES[family(config)]
    return model_class(config)


def count_parameters(config: Config) -> int:
    """Count the parameters of a model without allocating them.

    Args:
        config: The config of any family.

    Returns:
        The number of trainable numbers; tied matrices count once.

    Raises:
        TypeError: If `config` is not the config of a model.

    Example:
        >>> from qkv.models import count_parameters, preset
        >>> count_parameters(preset("gpt2"))
        124439808
    """
    with without_numbers():
        return sum(parameter.numel() for parameter in build(config).parameters())


# Configs as JSON


def to_json(config: Config) -> dict[str, Any]:
    """Return the config as a JSON object that names its family."""
    if isinstance(config, TaskModelConfig):
        backbone = to_json(config.backbone)
        return {"family": family(config), "backbone": backbone, "head": asdict(config.head)}

    values = asdict(config)
    for field in own_parts.FIELDS:  # older versions do not know them
        if values.get(field, "") is None:
            del values[field]

    return {"family": family(config), **values}


def from_json(values: Mapping[str, Any]) -> Config:
    """Return the config that `to_json` wrote; an unknown key raises, it is never ignored."""
    values = legacy.rename_config_keys(values)
    name = values.pop("family", None)
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, not {name!r}")

    config_class, _ = FAMILIES[name]
    check_keys(values, config_class, f"the {name} config")
    if config_class is TaskModelConfig:
        return task_model_from_json(**values)

    if isinstance(values.get("rotary_scaling"), dict):
        check_keys(values["rotary_scaling"], RotaryScaling, "rotary_scaling")
        values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])

    return config_class(**values)


def task_model_from_json(backbone: Mapping[str, Any], head: Mapping[str, Any]) -> TaskModelConfig:
    backbone_config = from_json(backbone)
    if not isinstance(backbone_config, GPTConfig | BERTConfig):
        raise ValueError(f"backbone: expected a gpt or a bert, not a {family(backbone_config)}")

    check_keys(head, HeadConfig, "head")
    head_values = dict(head)
    for key, value in head.items():
        if isinstance(value, list):  # JSON has no tuples
            head_values[key] = tuple(value)

    return TaskModelConfig(backbone=backbone_config, head=HeadConfig(**head_values))


def check_keys(values: Mapping[str, Any], config_class: type[Any], owner: str) -> None:
    """Raise for a key that is not a field of the config class, and suggest a similar field."""
    known = [field.name for field in fields(config_class)]
    for key in values:
        if key in known:
            continue

        hint = f"it knows {', '.join(known)}"
        if similar := difflib.get_close_matches(key, known, n=1):
            hint = f"did you mean {similar[0]}?"

        raise ValueError(f"{key}: {owner} has no such key; {hint}")


# Weights


def with_weights(
    config: Config, weights: Mapping[str, Tensor], origin: str = "the weights"
) -> Model:
    """Build a model around these tensors, without a copy of them.

    Names and shapes must be exactly the model's; names of version 0.6 are translated.

    Args:
        config: The config of the model.
        weights: All tensors of its state dict, by name.
        origin: Where the weights come from, for error messages.

    Returns:
        The model in training mode.

    Raises:
        ValueError: If a tensor is missing, unknown, of another shape or of another dtype.
    """
    weights = legacy.rename_weights(weights)
    with without_numbers():
        model = build(config)

    check_names(weights, model.state_dict(), origin)
    for name, expected in model.state_dict().items():
        shape = tuple(weights[name].shape)
        if shape != tuple(expected.shape):
            raise ValueError(
                f"{origin}: {name} has shape {shape}, expected {tuple(expected.shape)}"
            )

    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"{origin}: expected tensors of one floating-point dtype, not {names}")

    model.load_state_dict(weights, assign=True)

    return model


def check_names(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], origin: str) -> None:
    if missing := sorted(expected.keys() - weights.keys()):
        raise ValueError(f"{origin}: {len(missing)} tensors are missing, the first is {missing[0]}")

    if surplus := sorted(weights.keys() - expected.keys()):
        raise ValueError(
            f"{origin}: {len(surplus)} tensors have no place in the model, "
            f"the first is {surplus[0]}"
        )


def check_finite(tensor: Tensor, where: str) -> None:
    """Raise for NaN or infinite weights, in one pass over the tensor and without a copy of it."""
    if not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return

    lowest, highest = torch.aminmax(tensor)  # both are NaN if any number is
    if math.isfinite(lowest) and math.isfinite(highest):
        return

    broken = int((~torch.isfinite(tensor)).sum())
    raise ValueError(
        f"{where}: {broken:,} of {tensor.numel():,} numbers are NaN or infinite: the training "
        "diverged, or the file is damaged. Load it with allow_nonfinite=True to inspect it all "
        "the same"
    )


def weights_of(model: Model) -> dict[str, Tensor]:
    """Return the model's state dict under the names it has when no part of it is compiled."""
    state = uncompiled(model).state_dict()
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in state.items()}


# Parts and variants of a model


def group_key_value_heads(model: Model, kv_heads: int) -> Model:
    """Turn a trained multi-head model into a grouped-query (or multi-query) one.

    Key and value heads are averaged in groups: a cheap start for a little more training
    (Ainslie et al. 2023).

    Args:
        model: A GPT, BERT or Transformer; it is not changed.
        kv_heads: Key and value heads of the new model (K); 1 is multi-query attention.

    Returns:
        A new model with its own weights.

    Raises:
        ValueError: If the model has no heads to group, or `kv_heads` does not divide its heads.

    Example:
        >>> from qkv.models import GPTConfig, build, group_key_value_heads
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=4))
        >>> group_key_value_heads(model, 2).config.kv_heads
        2
    """
    model = uncompiled(model)
    if not model.stacks:
        raise ValueError("kv_heads: an RNN has no heads to group")
    if model.task is not None:
        raise ValueError("kv_heads: group the heads first, then fine-tune")

    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for path, attention in model.named_modules():
        if isinstance(attention, MultiHeadAttention):
            for name, tensor in group_heads(attention, kv_heads).state_dict().items():
                weights[f"{path}.{name}"] = tensor.detach().clone()

    return with_weights(replace(model.config, kv_heads=kv_heads), weights).train(model.training)
