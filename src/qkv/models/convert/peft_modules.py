"""The modules that `peft` adapts, by the names that `transformers` has for them.

`peft` has one adapter per module. A Llama's q_proj is our query, but GPT-2's c_attn is query, key
and value in one; the weight rules of the formats tell which of our rows each module is. A model
that no format can express keeps our own names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from torch import nn

from qkv.models.convert import format_for
from qkv.models.convert.config_fields import SpecialIds
from qkv.models.convert.hf_format import Format
from qkv.models.convert.weight_rules import WeightRule
from qkv.models.model import Model, backbone_of
from qkv.models.registry import Config
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import adapter_sites

HEADS = {"Llama": "score", "GPT-2": "score", "BERT": "classifier"}
"""The name that `transformers` has for a task's head."""


class PeftModule(NamedTuple):
    """A module of theirs: rows of one of our linear layers."""

    layer: Linear
    rows: range
    projection: str
    """The projection, "whole" for several together, or empty if it cannot be adapted."""


class PeftModules(NamedTuple):
    """All modules of a model under their names."""

    modules: dict[str, PeftModule]
    head: str
    """Their name of a task's head."""
    prefix: str
    """The prefix that a file of the inner model alone leaves out."""
    transposed: bool

    def canonical_name(self, name: str) -> str:
        """Return the name as in `modules`, for a name with or without the prefix."""
        for candidate in (name, self.prefix + name, name.removeprefix(self.prefix)):
            if candidate in self.modules:
                return candidate

        return name


def peft_modules(model: Model) -> PeftModules:
    """Return the modules of a model that a `peft` adapter can name."""
    if not model.stacks:
        raise ValueError("model: an RNN has no projections to adapt")

    backbone = backbone_of(model)
    format, bare = format_and_bare(backbone.config)
    if format is None:
        names = [f"{path}.weight" for path in linear_layers(model)]
        rules = [WeightRule(name, (name,)) for name in names]
        return PeftModules(dict(modules_of(model, rules)), "head", "", False)

    rules = format.rules(backbone.config)
    modules = dict(modules_of(backbone, rules))
    if bare and model.task is None:
        modules = {name.removeprefix(format.prefix): module for name, module in modules.items()}

    transposed = any(rule.transposed for rule in rules)

    return PeftModules(modules, HEADS.get(format.name, "head"), format.prefix, transposed)


def format_and_bare(config: Config) -> tuple[Format[Any] | None, bool]:
    """Return the format that can express a config, and whether it is written without the prefix."""
    try:
        format = format_for(config)
        values = format.config_to_hf(config, SpecialIds())
    except ValueError:
        return None, False

    return format, values["architectures"][0] in format.bare


def linear_layers(model: nn.Module) -> dict[str, Linear]:
    """Return the linear layers by path, as if no part of the model were compiled."""
    layers = {}
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            layers[path.replace("_orig_mod.", "")] = module

    return layers


def modules_of(model: nn.Module, rules: list[WeightRule]) -> Iterator[tuple[str, PeftModule]]:
    """Yield the name and the rows of every module of theirs that the rules name."""
    projections: dict[int, dict[range, str]] = {}
    for module in model.modules():
        for projection, site in adapter_sites(module).items():
            projections.setdefault(id(site.layer), {})[site.rows] = projection

    layers = linear_layers(model)

    for rule in rules:
        layer = layers.get(rule.ours.removesuffix(".weight"))
        if layer is None or not rule.ours.endswith(".weight"):
            continue

        known = projections.get(id(layer), {})
        other = ""
        if known:
            other = "whole"

        first = 0
        for name, size in zip(rule.theirs, rule.sizes or (layer.out_features,), strict=True):
            rows = range(first, first + size)
            yield name.removesuffix(".weight"), PeftModule(layer, rows, known.get(rows, other))
            first += size


def unique_endings(names: Collection[str], all_names: Collection[str]) -> list[str]:
    """Return the shortest endings that fit only `names`: q_proj for the q_proj of all layers."""
    others = [f".{name}" for name in all_names if name not in names]
    endings = set()
    for name in names:
        parts = name.split(".")
        for first in range(len(parts) - 1, -1, -1):
            ending = ".".join(parts[first:])
            if not any(other.endswith(f".{ending}") for other in others):
                endings.add(ending)
                break

    return sorted(endings)


def task_type(model: Model) -> str | None:
    """Return `peft`'s name for the model's task; None for a choice, which it has no name for."""
    if model.task is not None:
        return {"choice": None, "tag": "TOKEN_CLS"}.get(model.task.task, "SEQ_CLS")
    if model.has_source:
        return "SEQ_2_SEQ_LM"

    return "CAUSAL_LM" if model.is_causal else "FEATURE_EXTRACTION"
