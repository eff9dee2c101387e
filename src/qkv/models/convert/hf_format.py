"""Formats of `transformers`: one table per family of its config's fields and its tensors' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from qkv.models.configs import BERTConfig, GPTConfig, TransformerConfig
from qkv.models.convert.config_fields import (
    TABLES,
    Fields,
    SpecialIds,
    activation_to_hf,
    check_expressible,
)
from qkv.models.convert.weight_rules import WeightRule, Weights, check_names, tensor_from_hf
from qkv.models.model import Model
from qkv.models.registry import build, weights_of, with_weights
from qkv.models.without_numbers import without_numbers
from qkv.nn.stack_config import StackConfig

C = TypeVar("C", GPTConfig, BERTConfig, TransformerConfig)

PLAIN = {
    "window": None,
    "sparse": "none",
    "attention": None,
    "feed_forward": None,
    "position_encoding": None,
}
"""Fixed values of all formats."""
SUPPORTED = {
    **PLAIN,
    "join": "sum",
    "norm": "layer",
    "qkv_bias": True,
    "output_bias": True,
    "feed_forward_bias": True,
}
"""Fixed values of most formats."""
OLD_SPELLINGS = ((".gamma", ".weight"), (".beta", ".bias"))


@dataclass(frozen=True, kw_only=True)
class Format(Generic[C]):
    """How `transformers` stores one family of models: its config, its tensors' names and shapes."""

    name: str
    model_type: str
    architectures: Sequence[str]
    """Their classes whose weights can be read; the first is written."""
    bare: Sequence[str] = ()
    """Classes that are written without the prefix."""

    # The config
    config: type[C]
    fields: Mapping[str, tuple[str, Any]]
    """Our fields: their name of each, and their library's default."""
    only: Mapping[str, Any]
    """Their other fields, with the only values that are supported here."""
    fixed: Mapping[str, Any]
    """Our other fields, with the only values that the format can express."""
    final_norm: bool
    plain_heads: bool = True
    """Whether heads must be width / heads wide, with keys of their own."""
    more_from_hf: Callable[[Fields, Weights], dict[str, Any]] = lambda fields, weights: {}
    """Our fields that are not simply a field of theirs."""
    more_to_hf: Callable[[C], dict[str, Any]] = lambda config: {}
    ids_to_hf: Callable[[C, SpecialIds], dict[str, Any]] = lambda config, ids: ids.to_hf()

    # The tensors
    modules: Mapping[str, str | Sequence[str]]
    """Our modules and theirs, * for the number of a layer; several of theirs can be one of ours."""
    tensors: Mapping[str, Sequence[str]]
    """Our tensors outside these modules, or with copies: their name, and those of copies in files
    whose layers are tied.
    """
    more_tensors: Callable[[C], Mapping[str, Sequence[str]]] = lambda config: {}
    """Those whose names depend on the config."""
    transposed: bool = False
    """Whether matrices of layers are (inputs, outputs)."""
    flat: Sequence[str] = ()
    """Our tensors that have a first axis of length 1 in theirs."""
    prefix: str
    """Prefix of the inner model's names; files of the inner model alone leave it out."""
    heads: Sequence[str]
    """Prefixes of names outside the inner model."""
    ignored: str = r"(?!)"
    """Buffers that some versions store although they can be computed."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Old endings of names and the new ones."""
    constants: Sequence[str] = ()
    """Tensors that a file may hold and our model computes; more_from_hf checks them."""
    make_constants: Callable[[C], dict[str, Tensor]] = lambda config: {}

    def config_from_hf(self, fields: Fields, weights: Weights) -> C:
        """Return our config from theirs."""
        fields.only(**self.only)
        values = self.more_from_hf(fields, weights)
        for ours, (theirs, default) in self.fields.items():
            values.setdefault(ours, fields.value(theirs, default))

        return self.config(**{**self.fixed, **values})

    def config_to_hf(self, config: C, ids: SpecialIds) -> dict[str, Any]:
        """Return their config; raise for what it cannot express."""
        check_expressible(self.name, config, self.fixed, self.final_norm, self.plain_heads)
        values: dict[str, Any] = {
            "architectures": [self.architectures[0]],
            "model_type": self.model_type,
            **self.ids_to_hf(config, ids),
        }
        for ours, (theirs, default) in self.fields.items():
            values[theirs] = getattr(config, ours)
            if ours == "activation":
                values[theirs] = activation_to_hf(self.name, config.activation)
            elif ours == "hidden" and default is not None:
                values[theirs] = config.width_of_hidden

        return values | self.more_to_hf(config)

    def rules(self, config: C) -> list[WeightRule]:
        """Return the rule of each of our tensors that the format has a name for."""
        with without_numbers():
            tensors = build(config).state_dict()

        separate = set(chain.from_iterable(map(self.names_of, tensors)))  # not tied
        named = {**self.tensors, **self.more_tensors(config)}
        rules = []
        for ours, tensor in tensors.items():
            shape = tuple(tensor.shape)
            copies: tuple[str, ...] = ()
            theirs = self.names_of(ours)
            if ours in named:
                first, *rest = named[ours]
                theirs = (first,)
                copies = tuple(name for name in rest if name not in separate)

            if theirs:
                is_matrix = ".blocks." in ours and len(shape) > 1
                rules.append(
                    WeightRule(
                        ours,
                        theirs,
                        shape,
                        rows_of(config, shape[0], len(theirs)),
                        transposed=self.transposed and is_matrix,
                        flat=ours in self.flat,
                        copies=copies,
                    )
                )

        return rules

    def names_of(self, ours: str) -> tuple[str, ...]:
        """Return their names of one of our tensors, by the table of modules."""
        module, _, kind = ours.rpartition(".")
        layer = re.search(r"\d+", module)
        if layer:
            module = module.replace(layer[0], "*", 1)

        theirs = self.modules.get(module, ())
        if isinstance(theirs, str):
            theirs = (theirs,)

        ending = "bias" if kind == "bias" else "weight"
        number = layer[0] if layer else ""
        return tuple(f"{name}.{ending}".replace("*", number) for name in theirs)

    def canonical(self, weights: Weights) -> Weights:
        """Return the same weights under the newest names."""
        read: dict[str, Callable[[], Tensor]] = {}
        for name in weights:
            new_name = self.canonical_name(name)
            if re.search(self.ignored, new_name):
                continue
            if new_name in read:
                raise ValueError(f"{weights.origin}: two tensors mean {new_name}; expected one")

            read[new_name] = weights.read[name]

        return Weights(read, weights.origin, allow_nonfinite=weights.allow_nonfinite)

    def canonical_name(self, name: str) -> str:
        if not name.startswith((self.prefix, *self.heads)):
            name = self.prefix + name

        for old_end, new_end in self.spellings:
            if name.endswith(old_end):
                name = name.removesuffix(old_end) + new_end

        return name


def family_table(model_type: str) -> dict[str, Any]:
    """Return the entries of a family in formats.toml, as arguments of `Format`."""
    table = {**TABLES[model_type], "model_type": model_type}
    del table["detected_by"]
    table["fields"] = {ours: (*theirs, None)[:2] for ours, theirs in table["fields"].items()}
    return table


def rows_of(config: StackConfig, rows: int, count: int) -> tuple[int, ...]:
    """Return the rows of each of theirs in ours: query, key and value, or equal parts."""
    if count == 3:
        kv_rows = (config.kv_heads or config.heads) * config.width_of_head
        return config.heads * config.width_of_head, kv_rows, kv_rows
    if count == 1:
        return ()

    return (rows // count,) * count


def model_from_hf(
    format: Format[Any], fields: Fields, weights: Weights, dtype: torch.dtype | None
) -> Model:
    """Return our model from their config and weights, in evaluation mode."""
    weights = format.canonical(weights)
    try:
        config = format.config_from_hf(fields, weights)
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    # Before a mistyped number makes us build a million blocks.
    layers = max(config.depth, getattr(config, "decoder_depth", None) or 0)
    if layers > len(weights):
        raise ValueError(
            f"{fields.origin}: {layers} layers, but {weights.origin} has {len(weights)} tensors"
        )

    rules = format.rules(config)
    check_names(rules, weights, format.constants)
    ours = {rule.ours: tensor_from_hf(rule, weights, dtype) for rule in rules}

    return with_weights(config, ours, weights.origin).eval()


def weights_to_hf(format: Format[Any], model: Model) -> dict[str, Tensor]:
    """Return our weights under their names; most are views, so this costs no memory."""
    ours = weights_of(model)
    rules = format.rules(model.config)
    unmatched = ours.keys() ^ {rule.ours for rule in rules}
    if unmatched:
        name = min(unmatched)
        raise ValueError(f"{name}: {format.name}'s format has no place for this tensor")

    theirs: dict[str, Tensor] = {}
    for rule in rules:
        theirs.update(rule.split(ours[rule.ours]))

    return theirs | format.make_constants(model.config)
