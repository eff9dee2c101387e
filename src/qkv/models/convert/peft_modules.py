"""Which of our rows each module of theirs is: the rules that translate whole models say it for
adapters, too.

`peft` has an adapter for each module. A Llama's q_proj is our query, but GPT-2's c_attn is query,
key and value in one. A model that no format can spell keeps our own names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from torch import nn

from qkv.models.bert import BERTConfig
from qkv.models.convert import format_out
from qkv.models.convert.config_fields import SpecialIds
from qkv.models.convert.weight_rules import Format, WeightRule, linear
from qkv.models.gpt import GPTConfig
from qkv.models.registry import Config, Model, backbone_of
from qkv.models.rnn import RNN
from qkv.models.task_model import TaskModel
from qkv.models.transformer import TransformerConfig
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import adapter_sites

HEADS = {"Llama": "score", "GPT-2": "score", "BERT": "classifier"}
"""What `transformers` calls the layer that a task puts on top."""


class Spot(NamedTuple):
    """Where a module of theirs lies in our model."""

    layer: Linear
    rows: range
    part: str
    """The projection it is; "whole" where it is several, and nothing where it is none that can be
    adapted.
    """


class Names(NamedTuple):
    spots: dict[str, Spot]
    """Our linear layers, by their names."""
    head: str
    """Their name of a task's head."""
    prefix: str
    """What a file of the inner model alone leaves out."""
    transposed: bool

    def of(self, name: str) -> str:
        """A module as we know it, be it of the inner model alone or of a whole one."""
        longer, shorter = self.prefix + name, name.removeprefix(self.prefix)
        return next((each for each in (name, longer, shorter) if each in self.spots), name)


def names_of(model: Model) -> Names:
    if isinstance(model, RNN):
        raise ValueError("model: an RNN has no projections to adapt")

    backbone = backbone_of(model)
    format, bare = spelled(backbone.config)
    if format is None:
        rules = [rule for path in layers_of(model) for rule in linear(path, path, bias=False)]
        return Names(dict(spots(model, rules)), "head", "", False)

    rules = format.rules(backbone.config)
    found = dict(spots(backbone, rules))
    if bare and not isinstance(model, TaskModel):
        found = {name.removeprefix(format.prefix): spot for name, spot in found.items()}

    transposed = any(rule.transposed for rule in rules)

    return Names(found, HEADS.get(format.name, "head"), format.prefix, transposed)


def spelled(config: Config) -> tuple[Format[Any] | None, bool]:
    """The format that can say all of a config, and whether it is written as the inner model alone."""
    try:
        format = format_out(config)
        values = format.config_out(config, SpecialIds())
    except ValueError:
        return None, False

    return format, values["architectures"][0] in format.bare


def layers_of(model: nn.Module) -> dict[str, Linear]:
    """By their names, which a part that was compiled for itself does not change."""
    found = {path.replace("_orig_mod.", ""): module for path, module in model.named_modules()}
    return {path: module for path, module in found.items() if isinstance(module, Linear)}


def spots(model: nn.Module, rules: list[WeightRule]) -> Iterator[tuple[str, Spot]]:
    projections: dict[int, dict[range, str]] = {}
    for module in model.modules():
        for projection, place in adapter_sites(module).items():
            projections.setdefault(id(place.layer), {})[place.rows] = projection

    layers = layers_of(model)

    for rule in rules:
        layer = layers.get(rule.ours.removesuffix(".weight"))
        if layer is None or not rule.ours.endswith(".weight"):
            continue

        known, first = projections.get(id(layer), {}), 0
        for name, size in zip(rule.theirs, rule.sizes or (layer.out_features,), strict=True):
            rows = range(first, first + size)
            part = known.get(rows, "whole" if known else "")
            yield name.removesuffix(".weight"), Spot(layer, rows, part)
            first += size


def endings(wanted: Collection[str], every: Collection[str]) -> list[str]:
    """The shortest ends of names that no other name has: q_proj for the q_proj of all layers."""
    others, found = [f".{name}" for name in every if name not in wanted], []
    for name in wanted:
        words = name.split(".")
        ends = (".".join(words[first:]) for first in range(len(words) - 1, -1, -1))
        found.append(
            next(end for end in ends if not any(other.endswith(f".{end}") for other in others))
        )

    return sorted(set(found))


def task_type(model: Model) -> str | None:
    """What `peft` calls the model's task."""
    if isinstance(model, TaskModel):
        if model.config.head.task == "choice":
            return None  # they have none for it

        return "TOKEN_CLS" if model.config.head.task == "tag" else "SEQ_CLS"

    if isinstance(model.config, TransformerConfig):
        return "SEQ_2_SEQ_LM"

    assert isinstance(model.config, GPTConfig | BERTConfig)

    return "CAUSAL_LM" if isinstance(model.config, GPTConfig) else "FEATURE_EXTRACTION"
