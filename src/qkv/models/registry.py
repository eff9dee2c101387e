"""A model from its config, a config from JSON, and weights into a model with every name and shape
checked.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from qkv.models.bert import BERT
from qkv.models.configs import (
    CONFIGS,
    BERTConfig,
    Config,
    GPTConfig,
    HeadConfig,
    TaskModelConfig,
    family,
)
from qkv.models.gpt import GPT
from qkv.models.rnn import RNN
from qkv.models.task_model import TaskModel
from qkv.models.transformer import Transformer
from qkv.nn.attention.multi_head import MultiHeadAttention, group_heads
from qkv.nn.stack_config import RotaryScaling

Model = GPT | BERT | Transformer | RNN | TaskModel
MODELS = {"gpt": GPT, "bert": BERT, "transformer": Transformer, "rnn": RNN, "tuned": TaskModel}
FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    name: (CONFIGS[name], model) for name, model in MODELS.items()
}


def build(config: Config) -> Model:
    """A freshly initialised model."""
    return FAMILIES[family(config)][1](config)


def count_parameters(config: Config) -> int:
    """How many numbers the model learns, without making any of them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(config).parameters())


def to_json(config: Config) -> dict[str, Any]:
    if isinstance(config, TaskModelConfig):
        return {
            "family": "tuned",
            "backbone": to_json(config.backbone),
            "head": asdict(config.head),
        }

    return {"family": family(config), **asdict(config)}


def from_json(values: Mapping[str, Any]) -> Config:
    """The config that `to_json` wrote; a key it does not know is refused, never ignored."""
    values = dict(values)
    name = values.pop("family", None)
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, not {name!r}")

    kind = FAMILIES[name][0]
    check_keys(values, kind, f"the {name} config")
    if kind is TaskModelConfig:
        return task_model_from_json(**values)

    if isinstance(values.get("rotary_scaling"), dict):
        check_keys(values["rotary_scaling"], RotaryScaling, "rotary_scaling")
        values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])

    return kind(**values)


def task_model_from_json(backbone: Mapping[str, Any], head: Mapping[str, Any]) -> TaskModelConfig:
    inner = from_json(backbone)
    if not isinstance(inner, GPTConfig | BERTConfig):
        raise ValueError(f"backbone: expected a gpt or a bert, not a {family(inner)}")

    check_keys(head, HeadConfig, "head")
    lists = {
        key: tuple(value) for key, value in head.items() if isinstance(value, list)
    }  # as JSON has them

    return TaskModelConfig(backbone=inner, head=HeadConfig(**{**head, **lists}))


def check_keys(values: Mapping[str, Any], kind: type[Any], owner: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {close[0]}?" if close else f"; it knows {', '.join(known)}"
            raise ValueError(f"{key}: {owner} has no such key{meant}")


def with_weights(
    config: Config, weights: Mapping[str, Tensor], origin: str = "the weights"
) -> Model:
    """A model with these weights, whose names and shapes must be exactly the model's own."""
    with torch.device("meta"):
        model = build(config)

    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if missing := sorted(expected.keys() - weights.keys()):
        raise ValueError(f"{origin}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if surplus := sorted(weights.keys() - expected.keys()):
        raise ValueError(
            f"{origin}: {len(surplus)} tensors have no place in the model, the first is {surplus[0]}"
        )

    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(
                f"{origin}: {name} has shape {tuple(weights[name].shape)}, expected {shape}"
            )

    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        found = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"{origin}: expected tensors of one floating-point dtype, not {found}")

    model.load_state_dict(dict(weights), assign=True)

    return model


def check_finite(tensor: Tensor, where: str) -> None:
    """Refuse NaN and infinite weights, in one pass over the tensor's memory and without a copy of
    it.
    """
    if not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return
    if all(
        math.isfinite(bound) for bound in torch.aminmax(tensor)
    ):  # which are NaN where a number is
        return

    broken = int((~torch.isfinite(tensor)).sum())
    raise ValueError(
        f"{where}: {broken:,} of {tensor.numel():,} numbers are NaN or infinite: the training diverged, or the file is "
        "damaged. Load it with allow_nonfinite=True to inspect it all the same"
    )


def backbone_of(model: Model) -> GPT | BERT | Transformer | RNN:
    """The model below a head, or the model itself where there is none."""
    return model.backbone if isinstance(model, TaskModel) else model


def uncompiled(model: Model) -> Model:
    """The model inside what torch.compile returns, whose parameters have other names."""
    return getattr(model, "_orig_mod", model)


def weights_of(model: Model) -> dict[str, Tensor]:
    """The state of a model, under the names that it has when no part of it is compiled."""
    return {
        name.replace("_orig_mod.", ""): tensor
        for name, tensor in uncompiled(model).state_dict().items()
    }


def group_key_value_heads(model: Model, kv_heads: int) -> Model:
    """A trained multi-head model as a grouped-query (or multi-query) one: key and value heads
    averaged in groups.

    A cheap start for a little more training (Ainslie et al. 2023). The old model is not changed.
    """
    model = uncompiled(model)
    if isinstance(model, RNN):
        raise ValueError("kv_heads: an RNN has no heads to group")
    if isinstance(model, TaskModel):
        raise ValueError("kv_heads: group the heads first, then fine-tune")

    weights: dict[str, Tensor] = dict(model.state_dict())

    for path, attention in model.named_modules():
        if isinstance(attention, MultiHeadAttention):
            grouped = group_heads(attention, kv_heads).state_dict()
            weights.update({f"{path}.{name}": tensor for name, tensor in grouped.items()})

    weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    return with_weights(replace(model.config, kv_heads=kv_heads), weights).train(model.training)
